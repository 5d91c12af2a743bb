"""The configuration of a resumed run: that of its checkpoint, with what the user changes.

It comes out of the checkpoint as plain data and is checked against the schemas.
"""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from headscope import checkpoint
from headscope.config import parse
from headscope.config.training import TrainConfig
from headscope.data.store import TokenStore
from headscope.errors import UserError
from headscope.training.recovery import Recovered, read_summary


def resumed_config(
    composed: dict[str, Any], found: Recovered, keys: list[str]
) -> tuple[TrainConfig, list[str]]:
    """The configuration of the run that `found` is of, with `keys` as in `composed`, and a line for
    each change. `composed` is the configuration that Hydra made, as plain data."""
    config = asdict(checkpoint.config_of(found.content))
    changes = []
    for key in keys:
        before, after = value_at(config, key), value_at(composed, key)
        set_at(config, key, after)
        if before != after:
            changes.append(f"{key} from {before} to {after}")
    # A checkpoint does not choose where files are written.
    config["store_dir"] = composed["store_dir"]
    resumed = parse(TrainConfig, config)
    check_unfinished(found, resumed)
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


def check_unfinished(found: Recovered, config: TrainConfig) -> None:
    """Raises UserError when a run has no steps left."""
    step = found.step
    summary = read_summary(found.folder)
    if summary is None or summary["steps"] != step:
        return
    patience = config.callbacks.early_stopping_patience
    stopping = found.content["callbacks"].get("patience")
    waited = stopping.get("wait_count") if isinstance(stopping, dict) else None
    if step >= config.trainer.max_steps:
        more = "a larger trainer.max_steps="
    elif patience is not None and type(waited) is int and waited >= patience:
        more = "a larger callbacks.early_stopping_patience=, or null"
    else:
        return
    raise UserError(
        f"resume={found.folder}: it is finished, at {step} steps; to give it more, add {more}"
    )


def check_same_text(found: Recovered, store: TokenStore) -> None:
    """Raises UserError when the text of a run has changed since it began."""
    own, folder = found.content["headscope"], found.folder
    if own["store"] != store.name or own["tokenizer"] != store.tokenizer.state():
        raise UserError(
            f"resume={folder}: the text is not the one this run began with ({own['store']} then, "
            f"{store.name} now); start a new run with init_from={folder}/checkpoints/last.ckpt"
        )


def sources(config: TrainConfig) -> Iterator[str]:
    """A line for each file or dataset that a resumed run reads because its checkpoint names it."""
    yield from checkpoint.sources(config.data, "data")
    yield from checkpoint.sources(config.tokenizer, "tokenizer")
