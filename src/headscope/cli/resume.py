"""Makes the command line with which Hydra composes a resumed run.

Hydra gets the arguments of the user and the names of the run's choices, such as `optimizer=muon`.
Nothing else from the checkpoint goes through Hydra, because a checkpoint may come from an untrusted
source.
"""

from pathlib import Path

from headscope.cli.words import MULTIRUN, quote, value_of
from headscope.config import SCHEMAS
from headscope.config.training import TrainConfig
from headscope.errors import UserError
from headscope.training.recovery import newest_checkpoint
from headscope.training.run_folder import is_run

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
"""Keys and groups that cannot change when a run is resumed."""

CHOICES_FROM_RUN = ("optimizer", "schedule")
"""Groups for which Hydra gets the choice of the resumed run, because each choice has different
keys."""

FIXED_CHOICES = ("optimizer",)
"""Groups whose choice cannot change, because the checkpoint contains the state of this choice. The
keys of the choice can change, such as `optimizer.lr`."""


def resume_arguments(typed: list[str], quoted: list[str]) -> list[str]:
    """Returns the command-line arguments for Hydra. With `resume=`, they also contain the choices
    of the resumed run, and its folder as `hydra.run.dir`.

    Raises UserError when there is nothing to resume, when an argument changes a key that must stay
    the same, or when `hydra.run.dir=` names a folder that already holds a run.
    """
    resumed = value_of(typed, "resume")
    if resumed is None:
        folder = value_of(typed, "hydra.run.dir")
        if folder and is_run(Path(folder)):
            raise UserError(
                f"hydra.run.dir={folder} already holds a run: continue it with resume={folder}, "
                "or name another folder"
            )
        return quoted
    if MULTIRUN & set(typed):
        raise UserError(f"resume={resumed} continues one run: leave out -m")
    if value_of(typed, "hydra.run.dir") is not None:
        raise UserError(f"resume={resumed} continues in the run's folder: leave out hydra.run.dir=")
    config = newest_checkpoint(Path(resumed)).stored.config
    overrides = [argument for argument in quoted if not argument.startswith("resume=")]
    for argument in overrides:
        key = key_of(argument)
        fixed = next((name for name in FIXED if key == name or key.startswith(f"{name}.")), None)
        fixed = key if key in FIXED_CHOICES else fixed
        if fixed:
            raise UserError(
                f"{argument}: {fixed} cannot change in a resumed run; to change it, start a new "
                f"run from these weights with init_from={resumed}"
            )
    is_override = ["=" in word or word[:1] == "~" for word in overrides]
    first = is_override.index(True) if True in is_override else len(overrides)
    return [
        *overrides[:first],  # flags
        *choices_from_run(config, overrides),
        f"resume={quote(resumed)}",
        *overrides[first:],
        f"hydra.run.dir={quote(resumed)}",
        "hydra.output_subdir=null",
    ]


def choices_from_run(config: TrainConfig, overrides: list[str]) -> list[str]:
    """The choices of the resumed run, as arguments such as `schedule=linear`, for each group in
    `CHOICES_FROM_RUN` that `overrides` do not set.

    Returns only names from `SCHEMAS`, even if the configuration was manipulated.
    """
    changed = {key_of(argument) for argument in overrides}
    return [
        f"{group}={name}"
        for group in CHOICES_FROM_RUN
        if group not in changed
        for name, schema in SCHEMAS[group].items()
        if type(getattr(config, group)) is schema
    ]


def key_of(argument: str) -> str:
    """The key of an argument `key=value`. The slashes in the name of a group become dots."""
    return argument.partition("=")[0].lstrip("+~").replace("/", ".")


def changed_keys(composed: list[str]) -> list[str]:
    """The keys that the user changes in a resumed run. `composed` are the arguments from
    `resume_arguments`, where the user's own arguments come after `resume=`."""
    first = next(index for index, word in enumerate(composed) if word.startswith("resume="))
    return [key_of(word) for word in composed[first + 1 :]]
