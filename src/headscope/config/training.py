"""The keys of a training run, except those of its parts: conf/train.yaml, trainer and callbacks."""

from dataclasses import dataclass
from typing import Literal, get_args

from headscope.config.parse import Count, NonNegative, Positive
from headscope.config.parts import Part
from headscope.errors import UserError

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
    strategy: Literal["auto", "ddp", "fsdp"]
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


@dataclass(frozen=True)
class Thresholds:
    """The threshold of each head name: the minimum excess of a metric over uniform attention. It is
    above 0 and at most 1.

    Two thresholds are compared with a metric itself instead of its excess. A head is named `global`
    only if its metric `global` is at least `spread`. A head whose metric `unevenness` is below
    `even` gets no name from the text as a whole.

    The defaults of `frequent` and `rare` are about 1/3. With this excess, the frequent
    (or the rare) half of the text gets 2/3 of the weight. With uniform attention, it gets 1/2.
    """

    self: float = 0.4
    previous: float = 0.4
    next: float = 0.4
    first: float = 0.4
    induction: float = 0.3
    same_token: float = 0.3
    punctuation: float = 0.4
    single_key: float = 0.4
    fixed_offset: float = 0.4
    adjacent: float = 0.5
    local: float = 0.5
    backward: float = 0.6
    forward: float = 0.6
    frequent: float = 0.33
    rare: float = 0.33
    short_range: float = 0.5
    spread: float = 0.5
    even: float = 0.1

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 < value <= 1:
                raise UserError(f"thresholds.{name}={value} must be above 0 and at most 1")


@dataclass(kw_only=True)
class HeadsConfig:
    every_steps: Count
    windows: Positive
    thresholds: Thresholds


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
    parts: str | list[str] | None
    model: Part
    tokenizer: Part | None  # null: that of an imported model
    data: Part | None  # null: the text of an imported model, which is unknown
    optimizer: Part
    schedule: Part
    trainer: TrainerConfig
    logger: LoggerConfig | None = None
    callbacks: CallbacksConfig
