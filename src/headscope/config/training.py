"""Schemas of a training run: conf/train.yaml and its groups, except model, tokenizer and data."""

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from headscope.config.model import ModelConfig
from headscope.config.parse import Count, NonNegative, Positive
from headscope.config.parts import Part
from headscope.config.text import CorpusConfig, TokenizerConfig

Precision = Literal["32-true", "bf16-mixed", "bf16-true"]
PRECISIONS = get_args(Precision)
"""The precisions in which a run may compute, as Lightning names them. The precisions are, in this
order: float32, float32 weights with matrix products in bfloat16 (mixed precision), and bfloat16."""


@dataclass(kw_only=True)
class OptimizerConfig(Part):
    lr: NonNegative


@dataclass(kw_only=True)
class AdamWConfig(OptimizerConfig):
    _target_: str = "headscope.training.optimizer.adamw"
    weight_decay: NonNegative
    beta1: float
    beta2: float


@dataclass(kw_only=True)
class MuonConfig(OptimizerConfig):
    _target_: str = "headscope.training.optimizer.muon"
    matrix_lr: NonNegative
    momentum: float
    weight_decay: NonNegative
    beta1: float
    beta2: float


@dataclass(kw_only=True)
class ScheduleConfig(Part):
    pass


@dataclass(kw_only=True)
class WarmupCosineConfig(ScheduleConfig):
    _target_: str = "headscope.training.schedule.warmup_cosine"
    warmup_steps: Count
    final_fraction: NonNegative


@dataclass(kw_only=True)
class WarmupLinearConfig(ScheduleConfig):
    _target_: str = "headscope.training.schedule.warmup_linear"
    warmup_steps: Count
    cooldown: float
    final_fraction: NonNegative


@dataclass(kw_only=True)
class TrainerConfig:
    max_steps: Count
    batch_size: Positive
    accumulate: Positive
    gradient_clip: NonNegative
    val_every_steps: Positive
    val_batch_size: Positive
    final_validation: Literal["whole", "part"] = "whole"
    log_every_steps: Positive
    accelerator: Literal["auto", "cpu", "gpu", "cuda", "mps"]
    devices: Literal["auto"] | Positive | list[Count]
    num_nodes: Positive = 1
    strategy: Literal["auto", "ddp", "fsdp"] = "auto"
    precision: Literal["auto"] | Precision
    compile: Literal["auto"] | bool
    checkpoint_activations: bool
    loss_chunk_tokens: Literal["auto"] | Count | None


@dataclass(kw_only=True)
class LoggerConfig(Part):
    _partial_: ClassVar[bool] = False  # type: ignore[misc]  # called at once


@dataclass(kw_only=True)
class TensorBoardConfig(LoggerConfig):
    _target_: str = "lightning.pytorch.loggers.TensorBoardLogger"


@dataclass(kw_only=True)
class AttentionLogConfig:
    text: str | None
    steps: Count
    images: Count
    step_megabytes: NonNegative
    run_megabytes: NonNegative


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
    fixed_offset: float
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
    every_steps: Count
    windows: Positive
    thresholds: ThresholdsConfig


@dataclass(kw_only=True)
class SamplesConfig:
    prompt: str
    max_new_tokens: Count
    temperature: NonNegative
    top_k: Positive | None


@dataclass(kw_only=True)
class CallbacksConfig:
    attention: AttentionLogConfig
    heads: HeadsConfig
    samples: SamplesConfig
    save_every_minutes: NonNegative
    keep_steps: list[Count]
    early_stopping_patience: Positive | None


@dataclass(kw_only=True)
class TrainConfig:
    name: str
    seed: Count
    resume: str | None
    init_from: str | None
    store_dir: str
    parts: str | None = None
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
