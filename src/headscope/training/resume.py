"""Creates the configuration of a resumed run: the configuration in the checkpoint, with the user's
changes.

The configuration in the checkpoint is plain data, which is checked against the schemas.
"""

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

from headscope import checkpoint
from headscope.config import parse
from headscope.config.training import TrainConfig
from headscope.data.store import TokenStore
from headscope.errors import UserError
from headscope.files import read_summary
from headscope.training.recovery import ResumeCheckpoint


def resumed_config(
    composed: dict[str, Any], resume: ResumeCheckpoint, keys: list[str]
) -> tuple[TrainConfig, list[str]]:
    """The configuration of the run to resume, and one line for each change.

    `keys` are the keys that the user changes. The new values of the keys are taken from `composed`.
    `composed` is the configuration that Hydra composed from the command line, as plain data.
    """
    config = asdict(resume.stored.config)
    changes = []
    for key in keys:
        before, after = value_at(config, key), value_at(composed, key)
        set_at(config, key, after)
        if before != after:
            changes.append(f"{key} from {before} to {after}")
    # For security, a checkpoint must not decide where files are written.
    config["store_dir"] = composed["store_dir"]
    resumed = parse(TrainConfig, config)
    check_unfinished(resume, resumed)
    return resumed, changes


def value_at(config: Any, key: str) -> Any:
    for name in key.split("."):
        config = config.get(name) if isinstance(config, dict) else None
    return config


def set_at(config: dict[str, Any], key: str, value: Any) -> None:
    *groups, last = key.split(".")
    for name in groups:
        config = config[name]
    config[last] = value


def with_batches_of(resume: ResumeCheckpoint, config: TrainConfig) -> TrainConfig:
    """Replaces `trainer.accumulate=auto` by the number that the run has used until now. Its steps
    then have the same batches on every machine."""
    if config.trainer.accumulate != "auto":
        return config
    used, wanted = resume.stored.config.trainer, config.trainer
    if used.batch_size * used.accumulate != wanted.batch_size:
        return config
    batches = {"batch_size": used.batch_size, "accumulate": used.accumulate}
    return replace(config, trainer=replace(wanted, **batches))


def check_unfinished(resume: ResumeCheckpoint, config: TrainConfig) -> None:
    """Raises UserError if the run has no steps left to train."""
    step = resume.step
    summary = read_summary(resume.folder)
    if summary is None or summary["steps"] != step:
        return
    patience = config.callbacks.early_stopping_patience
    callbacks = resume.stored.data["training"].get("callbacks")
    early_stopping = callbacks.get("patience") if isinstance(callbacks, dict) else None
    waited = early_stopping.get("wait_count") if isinstance(early_stopping, dict) else None
    if step >= config.trainer.max_steps:
        advice = "a larger trainer.max_steps="
    elif patience is not None and type(waited) is int and waited >= patience:
        advice = "a larger callbacks.early_stopping_patience=, or null"
    else:
        return
    raise UserError(
        f"resume={resume.folder}: this run is finished, at {step} steps; to train longer, add "
        f"{advice}"
    )


def check_same_text(resume: ResumeCheckpoint, store: TokenStore) -> None:
    """Raises UserError if the text or the tokenizer of the run has changed since the run
    started."""
    saved, folder = resume.stored.data, resume.folder
    if saved["store"] != store.name or saved["tokenizer"] != store.tokenizer.state():
        raise UserError(
            f"resume={folder}: the text has changed since this run started (from {saved['store']} "
            f"to {store.name}); start a new run with init_from={resume.path}"
        )


def sources(config: TrainConfig) -> Iterator[str]:
    """One line for each file, folder or dataset that the resumed run reads because the checkpoint's
    configuration names it."""
    yield from checkpoint.sources(config.data, "data")
    yield from checkpoint.sources(config.tokenizer, "tokenizer")
