"""Resume a run: its own configuration, with what the command line changes on top.

The configuration comes out of the checkpoint as plain data and is checked against the schemas. Only
words of the command line are composed by Hydra, never anything that a checkpoint says.
"""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headscope import checkpoint
from headscope.command_line import MULTIRUN, quote, value_of
from headscope.config import SCHEMAS, parse
from headscope.config.training import TrainConfig
from headscope.errors import UserError
from headscope.recovery import newest_checkpoint, read_summary
from headscope.run_folder import is_run

if TYPE_CHECKING:
    from headscope.data.store import TokenStore

FIXED = (
    "model",
    "tokenizer",
    "data",
    "seed",
    "init_from",
    "experiment",
    "name",
    "trainer.batch_size",
    "trainer.accumulate",
    "trainer.val_every_steps",
)
"""What a run is; a change of these makes another run."""

KEPT_CHOICES = ("optimizer", "schedule")
"""Groups whose keys depend on the choice: they are composed with the choice of the run."""

FIXED_CHOICES = ("optimizer",)
"""Groups in which a run keeps its choice, since the checkpoint holds its state."""


def resume_arguments(typed: list[str], quoted: list[str]) -> list[str]:
    """The command line to compose with; with `resume=`, one that makes Hydra stay in that folder.

    Raises UserError when there is nothing to resume, the words would change what the run is, or
    `hydra.run.dir=` names a folder that is a run already.
    """
    given = value_of(typed, "resume")
    if given is None:
        folder = value_of(typed, "hydra.run.dir")
        if folder and is_run(Path(folder)):
            raise UserError(
                f"hydra.run.dir={folder} is a run already; continue it with resume={folder}, "
                "or name another folder"
            )
        return quoted
    if MULTIRUN & set(typed):
        raise UserError(f"resume={given} continues one run: leave out -m")
    if value_of(typed, "hydra.run.dir") is not None:
        raise UserError(f"resume={given} goes on in its own folder: leave out hydra.run.dir=")
    own = checkpoint.config_of(newest_checkpoint(Path(given)).content)
    new = [argument for argument in quoted if not argument.startswith("resume=")]
    for argument in new:
        key = key_of(argument)
        kept = next((name for name in FIXED if key == name or key.startswith(f"{name}.")), None)
        kept = key if key in FIXED_CHOICES else kept
        if kept:
            raise UserError(
                f"{argument}: a resumed run keeps its {kept}; to change it, start a new run "
                f"from these weights with init_from={given}"
            )
    first = next((n for n, word in enumerate(new) if "=" in word or word[:1] == "~"), len(new))
    return [
        *new[:first],  # flags
        *kept_choices(own, new),
        f"resume={quote(given)}",
        *new[first:],
        f"hydra.run.dir={quote(given)}",
        "hydra.output_subdir=null",
    ]


def kept_choices(config: TrainConfig, new: list[str]) -> list[str]:
    """`schedule=linear` and the like: the run's choices in KEPT_CHOICES that `new` does not change.

    Only names of SCHEMAS come out of here, whatever the configuration holds.
    """
    changed = {key_of(argument) for argument in new}
    return [
        f"{group}={name}"
        for group in KEPT_CHOICES
        if group not in changed
        for name, schema in SCHEMAS[group].items()
        if type(getattr(config, group)) is schema
    ]


def resumed_config(
    composed: dict[str, Any], folder: Path, words: list[str]
) -> tuple[TrainConfig, list[str]]:
    """The configuration of the run in `folder` with the changes of the command line, and a line for
    each change.

    `composed` is what Hydra made of `words`, those of `resume_arguments`, as plain data.
    """
    content = newest_checkpoint(folder).content
    config = asdict(checkpoint.config_of(content))
    changes = []
    resume = next(place for place, word in enumerate(words) if word.startswith("resume="))
    for argument in words[resume + 1 :]:
        key = key_of(argument)
        before, after = value_at(config, key), value_at(composed, key)
        set_at(config, key, after)
        if before != after:
            changes.append(f"{key} from {before} to {after}")
    # A checkpoint does not choose where files are written.
    config["store_dir"] = composed["store_dir"]
    resumed = parse(TrainConfig, config)
    check_unfinished(content, resumed, folder)
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


def check_unfinished(content: dict[str, Any], config: TrainConfig, folder: Path) -> None:
    """Raises UserError when a run has no steps left."""
    step = content["global_step"]
    summary = read_summary(folder)
    if summary is None or summary["steps"] != step:
        return
    patience = config.callbacks.early_stopping_patience
    stopping = content["callbacks"].get("patience")
    waited = stopping.get("wait_count") if isinstance(stopping, dict) else None
    if step >= config.trainer.max_steps:
        more = "a larger trainer.max_steps="
    elif patience is not None and type(waited) is int and waited >= patience:
        more = "a larger callbacks.early_stopping_patience=, or null"
    else:
        return
    raise UserError(
        f"resume={folder}: it is finished, at {step} steps; to give it more, add {more}"
    )


def check_same_text(content: dict[str, Any], store: "TokenStore", folder: Path) -> None:
    """Raises UserError when the text of a run has changed since it began."""
    own = content["headscope"]
    if own["store"] != store.name or own["tokenizer"] != store.tokenizer.state():
        raise UserError(
            f"resume={folder}: the text is not the one this run began with ({own['store']} then, "
            f"{store.name} now); start a new run with init_from={folder}/checkpoints/last.ckpt"
        )


def sources(config: TrainConfig) -> Iterator[str]:
    """A line for each file or dataset that a resumed run reads because its checkpoint names it."""
    yield from checkpoint.sources(config.data, "data")
    yield from checkpoint.sources(config.tokenizer, "tokenizer")


def key_of(argument: str) -> str:
    """The place in the configuration that `key=value` is about; a group's slashes are dots."""
    return argument.partition("=")[0].lstrip("+~").replace("/", ".")
