"""The keys of a training run, except those of its parts: conf/train.yaml, trainer and callbacks."""

from dataclasses import dataclass
from typing import Literal, get_args

from headscope.config.parse import Count, NonNegative, Positive, Texts
from headscope.config.parts import Part

Precision = Literal["32-true", "bf16-mixed", "bf16-true"]
PRECISIONS = get_args(Precision)
"""The precisions in which a run may compute, as Lightning names them. The precisions are, in this
order: float32, float32 weights with matrix products in bfloat16 (mixed precision), and bfloat16."""


@dataclass(kw_only=True)
class TrainerConfig:
    max_steps: Count
    batch_size: Positive
    accumulate: Positive
    gradient_clip: NonNegative
    val_every_steps: Positive
    val_batch_size: Positive
    final_validation: Literal["whole", "part"]
    log_every_steps: Positive
    accelerator: Literal["auto", "cpu", "gpu", "cuda", "mps"]
    devices: Literal["auto"] | Positive | list[Count]
    num_nodes: Positive
    precision: Literal["auto"] | Precision
    compile: Literal["auto"] | bool
    checkpoint_activations: bool
    loss_chunk_tokens: Literal["auto"] | Count | None


@dataclass(kw_only=True)
class LoggerConfig:
    _target_: Literal["lightning.pytorch.loggers.TensorBoardLogger"]


@dataclass(kw_only=True)
class AttentionLogConfig:
    text: str | None
    steps: Count
    images: Count
    step_megabytes: NonNegative
    run_megabytes: NonNegative


@dataclass(kw_only=True)
class HeadsConfig:
    every_steps: Count
    windows: Positive
    thresholds: Part


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
    parts: Texts
    model: Part
    tokenizer: Part | None  # null: that of an imported model
    data: Part | None  # null: the text of an imported model, which is unknown
    optimizer: Part
    schedule: Part
    trainer: TrainerConfig
    logger: LoggerConfig | None = None
    callbacks: CallbacksConfig
