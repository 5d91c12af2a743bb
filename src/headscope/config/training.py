"""The keys of a training run, except those of its parts: conf/train.yaml and trainer."""

from dataclasses import asdict, dataclass, field, fields
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
        """The plain data that a checkpoint keeps (see `kept_and_added`)."""
        return kept_and_added(self._plain())[0]

    def added(self) -> dict[str, Any]:
        """What a checkpoint does not keep, by key (see `kept_and_added`)."""
        return kept_and_added(self._plain())[1]

    def _plain(self) -> dict[str, Any]:
        """The configuration as Hydra composed it."""
        plain = asdict(self)
        return plain | {"trainer": plain["trainer"] | plain["trainer"].pop("arguments")}


def kept_and_added(plain: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Divides a composed configuration into what a checkpoint keeps, and what it does not keep,
    because it may be anyone's code: loggers, callbacks that are not headscope's, and arguments of
    lightning.Trainer. The keys of the second dictionary are paths, such as `callbacks.mine`."""
    kept = {key: value for key, value in plain.items() if key != "logger"}
    trainer, ours = plain["trainer"], {key.name for key in fields(TrainerConfig)} - {"arguments"}
    kept["trainer"] = {key: value for key, value in trainer.items() if key in ours}
    parts = {name: part for name, part in (plain.get("callbacks") or {}).items() if part}
    groups = {name: part for name, part in parts.items() if isinstance(part, dict)}
    foreign = [name for name, part in groups.items() if is_foreign(part, "callbacks")]
    kept["callbacks"] = {name: part for name, part in parts.items() if name not in foreign}
    loggers = (plain.get("logger") or {}).items()
    added = {f"callbacks.{name}": parts[name] for name in foreign}
    added |= {f"logger.{name}": logger for name, logger in loggers if logger}
    added |= {f"trainer.{key}": value for key, value in trainer.items() if key not in ours}
    return kept, added
