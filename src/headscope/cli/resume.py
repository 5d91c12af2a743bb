"""The command line of a resumed run. Hydra composes its words, and nothing that a checkpoint says
but the names of choices."""

from pathlib import Path
from typing import TYPE_CHECKING

from headscope import checkpoint
from headscope.cli.words import MULTIRUN, quote, value_of
from headscope.config import SCHEMAS
from headscope.config.training import TrainConfig
from headscope.errors import UserError
from headscope.training.recovery import newest_checkpoint
from headscope.training.run_folder import is_run

if TYPE_CHECKING:
    pass

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


def key_of(argument: str) -> str:
    """The place in the configuration that `key=value` is about; a group's slashes are dots."""
    return argument.partition("=")[0].lstrip("+~").replace("/", ".")


def changed_keys(composed: list[str]) -> list[str]:
    """The keys that the user changes, from the words that Hydra composed: those of
    `resume_arguments`, where the user's stand after `resume=`."""
    first = next(place for place, word in enumerate(composed) if word.startswith("resume="))
    return [key_of(word) for word in composed[first + 1 :]]
