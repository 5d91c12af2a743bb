"""Schemas of a training run: conf/train.yaml and its groups, except model, tokenizer and data."""

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from headscope.config.model import ModelConfig
from headscope.config.text import CorpusConfig, TokenizerConfig

PRECISIONS = ("32-true", "bf16-mixed", "bf16-true")
"""The precisions in which a run may compute, as Lightning names them. The precisions are, in this
order: float32, float32 weights with matrix products in bfloat16 (mixed precision), and bfloat16."""


@dataclass
class OptimizerConfig:
    _target_: str = MISSING
    _partial_: bool = True
    lr: float = MISSING


@dataclass
class AdamWConfig(OptimizerConfig):
    _target_: str = "headscope.training.optimizer.adamw"
    weight_decay: float = MISSING
    beta1: float = MISSING
    beta2: float = MISSING


@dataclass
class MuonConfig(OptimizerConfig):
    _target_: str = "headscope.training.optimizer.muon"
    matrix_lr: float = MISSING
    momentum: float = MISSING
    weight_decay: float = MISSING
    beta1: float = MISSING
    beta2: float = MISSING


@dataclass
class ScheduleConfig:
    _target_: str = MISSING
    _partial_: bool = True


@dataclass
class WarmupCosineConfig(ScheduleConfig):
    _target_: str = "headscope.training.schedule.warmup_cosine"
    warmup_steps: int = MISSING
    final_fraction: float = MISSING


@dataclass
class WarmupLinearConfig(ScheduleConfig):
    _target_: str = "headscope.training.schedule.warmup_linear"
    warmup_steps: int = MISSING
    cooldown: float = MISSING
    final_fraction: float = MISSING


@dataclass
class TrainerConfig:
    max_steps: int = MISSING
    batch_size: int = MISSING
    accumulate: Any = MISSING
    gradient_clip: float = MISSING
    val_every_steps: int = MISSING
    val_batch_size: int = MISSING
    final_validation: str = "whole"
    log_every_steps: int = MISSING
    accelerator: str = MISSING
    devices: Any = MISSING
    num_nodes: int = 1
    strategy: str = "auto"
    precision: str = MISSING
    compile: Any = MISSING
    checkpoint_activations: bool = MISSING
    loss_chunk_tokens: Any = MISSING


@dataclass
class LoggerConfig:
    _target_: str = MISSING


@dataclass
class TensorBoardConfig(LoggerConfig):
    _target_: str = "lightning.pytorch.loggers.TensorBoardLogger"


@dataclass
class AttentionConfig:
    text: str | None = MISSING
    steps: int = MISSING
    images: int = MISSING
    step_megabytes: float = MISSING
    run_megabytes: float = MISSING


@dataclass
class ThresholdsConfig:
    self: float = MISSING
    previous: float = MISSING
    next: float = MISSING
    first: float = MISSING
    induction: float = MISSING
    same_token: float = MISSING
    punctuation: float = MISSING
    single_key: float = MISSING
    adjacent: float = MISSING
    local: float = MISSING
    backward: float = MISSING
    forward: float = MISSING
    frequent: float = MISSING
    rare: float = MISSING
    short_range: float = MISSING
    spread: float = MISSING
    even: float = MISSING


@dataclass
class HeadsConfig:
    every_steps: int = MISSING
    windows: int = MISSING
    thresholds: ThresholdsConfig = field(default_factory=ThresholdsConfig)


@dataclass
class SamplesConfig:
    prompt: str = MISSING
    max_new_tokens: int = MISSING
    temperature: float = MISSING
    top_k: int | None = MISSING


@dataclass
class CallbacksConfig:
    attention: AttentionConfig = field(default_factory=AttentionConfig)
    heads: HeadsConfig = field(default_factory=HeadsConfig)
    samples: SamplesConfig = field(default_factory=SamplesConfig)
    save_every_minutes: float = MISSING
    keep_steps: list[int] = MISSING
    early_stopping_patience: int | None = MISSING


@dataclass
class TrainConfig:
    name: str = MISSING
    seed: int = MISSING
    resume: str | None = MISSING
    init_from: str | None = MISSING
    store_dir: str = MISSING
    model: ModelConfig = MISSING
    tokenizer: TokenizerConfig = MISSING
    data: CorpusConfig = MISSING
    optimizer: OptimizerConfig = MISSING
    schedule: ScheduleConfig = MISSING
    trainer: TrainerConfig = MISSING
    logger: LoggerConfig | None = None
    callbacks: CallbacksConfig = MISSING


SCHEMAS: dict[str, dict[str, type]] = {
    "optimizer": {"adamw": AdamWConfig, "muon": MuonConfig},
    "schedule": {"cosine": WarmupCosineConfig, "linear": WarmupLinearConfig},
    "trainer": {"default": TrainerConfig},
    "logger": {"tensorboard": TensorBoardConfig},
    "callbacks": {"default": CallbacksConfig, "plain": CallbacksConfig},
}
