"""The keys of a training run, except those of its parts: conf/train.yaml and trainer."""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from headscope.config.parse import Count, NonNegative, Others, Positive, Texts
from headscope.config.parts import Part, is_foreign

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
    arguments: Others = field(default_factory=dict)  # of lightning.Trainer, such as profiler


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
    callbacks: dict[str, Part | None] = field(default_factory=dict)
    logger: dict[str, Part | None] = field(default_factory=dict)

    def kept(self) -> dict[str, Any]:
        """The plain data that a checkpoint keeps: all keys except those of `added`."""
        kept = asdict(self)
        del kept["logger"], kept["trainer"]["arguments"]
        every = kept["callbacks"].items()
        ours = {name: each for name, each in every if each and not is_foreign(each, "callbacks")}
        return kept | {"callbacks": ours}

    def added(self) -> list[str]:
        """The keys of what a checkpoint does not keep, because it may be anyone's code: loggers,
        callbacks that are not headscope's, and arguments of lightning.Trainer."""
        own = [n for n, each in self.callbacks.items() if each and is_foreign(each, "callbacks")]
        return [
            *(f"callbacks.{name}" for name in own),
            *(f"logger.{name}" for name, each in self.logger.items() if each),
            *(f"trainer.{name}" for name in self.trainer.arguments),
        ]
