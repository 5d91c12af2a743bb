"""Train several choices alike and compare them: python scripts/compare.py compare=attention."""

import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra import compose
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from headscope.cli import command_line, words
from headscope.config import from_hydra, parse
from headscope.config.scripts import CompareConfig
from headscope.config.training import TrainConfig
from headscope.errors import UserError
from headscope.stop import Interrupted, on_stop, stop_on_signal
from headscope.training.run_folder import locked

if TYPE_CHECKING:
    from headscope.comparison.runs import PlannedRun

OWN = ("compare", "seeds", "speed_rounds", "name")
"""Keys that are about the comparison, not about a run."""

CONTINUE = "The same command continues the comparison."

OF_ONE_RUN = ("seed", "resume", "init_from", "hydra")
"""Keys that no comparison takes."""


def arguments(typed: list[str], quoted: list[str]) -> list[str]:
    """What to compose from: a list of choices without a choice of `compare` is the user's own."""
    for word in typed:
        if _begins(word, OF_ONE_RUN):
            raise UserError(
                f"{word} is of one run: a comparison takes seeds=[1,2,3], and name= for its folder"
            )
    if words.value_of(typed, "experiment") and not words.value_of(typed, "trainer.max_steps"):
        raise UserError(
            "experiment= has a length of its own, and so has a comparison: say which, by "
            "trainer.max_steps= and trainer.val_every_steps="
        )
    words.check_name(typed)
    choices = words.value_of(typed, "compare.choices")
    if choices is not None and words.value_of(typed, "compare") is None:
        return words.with_words(quoted, ["compare=own"])
    return quoted


def compare(composed: DictConfig) -> None:
    """Train, evaluate and time every choice; print the table and write it to the folder."""
    from rich.console import Console

    from headscope.comparison.compare import compare_runs

    hydra = HydraConfig.get()
    folder = command_line.run_folder()
    shared = [word for word in hydra.overrides.task if not _begins(word, OWN)]
    with locked(folder), on_stop(partial(_leave, folder)), ExitStack() as at_end:
        at_end.callback(_remove_empty, folder)
        config = from_hydra(CompareConfig, composed)
        choices, seeds = config.compare.choices, config.seeds
        if not choices or not seeds:
            raise UserError("compare.choices= and seeds= must each name at least one")
        named: dict[str, list[Any]] = {"compare.choices": choices, "seeds": seeds}
        for key, values in named.items():
            for value in values:
                if values.count(value) > 1:
                    raise UserError(f"{key}= names {value} twice")
        try:
            compare_runs(
                [run for choice in choices for run in _planned(shared, choice, seeds, folder)],
                folder=folder,
                block_sizes=config.compare.block_sizes,
                speed_rounds=config.speed_rounds,
                console=Console(),
            )
        except Interrupted:
            print(f"Stopped. {CONTINUE}", file=sys.stderr)
            raise


def _leave(folder: Path) -> str:
    _remove_empty(folder)
    return CONTINUE


def _remove_empty(folder: Path) -> None:
    """Remove a comparison in which nothing was made."""
    if not [entry for entry in folder.iterdir() if entry.name != ".lock"]:
        shutil.rmtree(folder)


def _planned(
    shared: list[str], choice: str, seeds: list[int], folder: Path
) -> "Iterator[PlannedRun]":
    """A run of `choice` for each seed."""
    from headscope.comparison.runs import PlannedRun

    try:
        typed = shlex.split(choice)
    except ValueError as error:
        raise UserError(f"compare.choices= {choice}: {error}") from error
    for word in typed:
        if _begins(word, (*OWN, *OF_ONE_RUN)):
            raise UserError(f"compare.choices= {choice}: {word} is not of one choice")
    own = words.literal_arguments([*typed, *words.implied_data(typed)])
    composed: Any = OmegaConf.to_container(compose("compare", [*shared, *own]), resolve=True)
    of_a_run = {key: composed[key] for key in TrainConfig.__dataclass_fields__}
    for seed in seeds:
        yield PlannedRun(choice, seed, parse(TrainConfig, of_a_run | {"seed": seed}), folder)


def _begins(word: str, keys: tuple[str, ...]) -> bool:
    """Whether `key=value` sets one of `keys`, or a key below it."""
    return "=" in word and word.partition("=")[0].lstrip("+~").partition(".")[0] in keys


if __name__ == "__main__":
    with stop_on_signal():
        command_line.run(compare, "compare", prepare=arguments)
