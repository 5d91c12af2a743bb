"""Schemas of a training run: conf/train.yaml and its groups, except model, tokenizer and data."""

from dataclasses import dataclass
from typing import Any, ClassVar

from headscope.config.model import ModelConfig
from headscope.config.parse import Choice
from headscope.config.parts import Part
from headscope.config.text import CorpusConfig, TokenizerConfig

PRECISIONS = ("32-true", "bf16-mixed", "bf16-true")
"""The precisions in which a run may compute, as Lightning names them. The precisions are, in this
order: float32, float32 weights with matrix products in bfloat16 (mixed precision), and bfloat16."""


@dataclass(kw_only=True)
class OptimizerConfig(Part):
    lr: float


@dataclass(kw_only=True)
class AdamWConfig(OptimizerConfig):
    _target_: str = "headscope.training.optimizer.adamw"
    weight_decay: float
    beta1: float
    beta2: float


@dataclass(kw_only=True)
class MuonConfig(OptimizerConfig):
    _target_: str = "headscope.training.optimizer.muon"
    matrix_lr: float
    momentum: float
    weight_decay: float
    beta1: float
    beta2: float


@dataclass(kw_only=True)
class ScheduleConfig(Part):
    pass


@dataclass(kw_only=True)
class WarmupCosineConfig(ScheduleConfig):
    _target_: str = "headscope.training.schedule.warmup_cosine"
    warmup_steps: int
    final_fraction: float


@dataclass(kw_only=True)
class WarmupLinearConfig(ScheduleConfig):
    _target_: str = "headscope.training.schedule.warmup_linear"
    warmup_steps: int
    cooldown: float
    final_fraction: float


@dataclass(kw_only=True)
class TrainerConfig:
    max_steps: int
    batch_size: int
    accumulate: Any
    gradient_clip: float
    val_every_steps: int
    val_batch_size: int
    final_validation: Choice = "whole"
    log_every_steps: int
    accelerator: Choice
    devices: Any
    num_nodes: int = 1
    strategy: Choice = "auto"
    precision: Choice
    compile: Any
    checkpoint_activations: bool
    loss_chunk_tokens: Any


@dataclass(kw_only=True)
class LoggerConfig(Part):
    _partial_: ClassVar[bool] = False  # type: ignore[misc]  # called at once


@dataclass(kw_only=True)
class TensorBoardConfig(LoggerConfig):
    _target_: str = "lightning.pytorch.loggers.TensorBoardLogger"


@dataclass(kw_only=True)
class AttentionLogConfig:
    text: str | None
    steps: int
    images: int
    step_megabytes: float
    run_megabytes: float


@dataclass(kw_only=True)
class ThresholdsConfig:
    self: float
    previous: float
    next: float
    first: float
    induction: float
    same_token: float
    punctuation: float
    single_key: float
    adjacent: float
    local: float
    backward: float
    forward: float
    frequent: float
    rare: float
    short_range: float
    spread: float
    even: float


@dataclass(kw_only=True)
class HeadsConfig:
    every_steps: int
    windows: int
    thresholds: ThresholdsConfig


@dataclass(kw_only=True)
class SamplesConfig:
    prompt: str
    max_new_tokens: int
    temperature: float
    top_k: int | None


@dataclass(kw_only=True)
class CallbacksConfig:
    attention: AttentionLogConfig
    heads: HeadsConfig
    samples: SamplesConfig
    save_every_minutes: float
    keep_steps: list[int]
    early_stopping_patience: int | None


@dataclass(kw_only=True)
class TrainConfig:
    name: str
    seed: int
    resume: str | None
    init_from: str | None
    store_dir: str
    model: ModelConfig
    tokenizer: TokenizerConfig
    data: CorpusConfig
    optimizer: OptimizerConfig
    schedule: ScheduleConfig
    trainer: TrainerConfig
    logger: LoggerConfig | None = None
    callbacks: CallbacksConfig


SCHEMAS: dict[str, dict[str, type]] = {
    "optimizer": {"adamw": AdamWConfig, "muon": MuonConfig},
    "schedule": {"cosine": WarmupCosineConfig, "linear": WarmupLinearConfig},
    "trainer": {"default": TrainerConfig},
    "logger": {"tensorboard": TensorBoardConfig},
    "callbacks": {"default": CallbacksConfig, "plain": CallbacksConfig},
}
