"""The command compare: trains several choices with the same settings and compares them."""

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
from headscope.config.own_parts import load_parts
from headscope.config.scripts import CompareConfig
from headscope.config.training import TrainConfig
from headscope.errors import UserError
from headscope.stop import Interrupted, on_stop, stop_on_signal
from headscope.training.run_folder import locked

if TYPE_CHECKING:
    from headscope.comparison.runs import PlannedRun

COMPARISON_KEYS = ("compare", "seeds", "speed_rounds", "name")
"""Keys that belong to the comparison. They are not passed on to its runs."""

CONTINUE = "The same command continues the comparison."

RUN_KEYS = ("seed", "resume", "init_from", "hydra")
"""Keys that apply only to a single run. A comparison rejects them."""


def arguments(typed: list[str], quoted: list[str]) -> list[str]:
    """Returns the command-line arguments for Hydra. `compare.choices=` without `compare=` selects
    `compare=own`."""
    for word in typed:
        if _sets(word, RUN_KEYS):
            raise UserError(
                f"{word} is a key of a single run: in a comparison, set seeds=[1,2,3], "
                "and name= for the folder"
            )
    if words.value_of(typed, "experiment") and not words.value_of(typed, "trainer.max_steps"):
        raise UserError(
            "experiment= and the comparison set different numbers of steps: choose with "
            "trainer.max_steps= and trainer.val_every_steps="
        )
    choices = words.value_of(typed, "compare.choices")
    if choices is not None and words.value_of(typed, "compare") is None:
        return words.with_words(quoted, ["compare=own"])
    return quoted


def main() -> None:
    with stop_on_signal():
        command_line.run(compare, "compare", prepare=arguments)


def compare(composed: DictConfig) -> None:
    """Train, evaluate and time all choices. Print a table of the results, and write it to the run
    folder."""
    from rich.console import Console

    from headscope.comparison.compare import compare_runs

    hydra = HydraConfig.get()
    folder = command_line.run_folder()
    shared = [word for word in hydra.overrides.task if not _sets(word, COMPARISON_KEYS)]
    with locked(folder), on_stop(partial(_clean_up, folder)), ExitStack() as stack:
        stack.callback(_remove_if_empty, folder)
        config = from_hydra(CompareConfig, composed)
        choices, seeds = config.compare.choices, config.seeds
        if not choices or not seeds:
            raise UserError("compare.choices= and seeds= must each have at least one entry")
        lists: dict[str, list[Any]] = {"compare.choices": choices, "seeds": seeds}
        for key, values in lists.items():
            for value in values:
                if values.count(value) > 1:
                    raise UserError(f"{key}= has {value} twice: remove one")
        try:
            compare_runs(
                [run for choice in choices for run in _planned_runs(shared, choice, seeds, folder)],
                folder=folder,
                block_sizes=config.compare.block_sizes,
                speed_rounds=config.speed_rounds,
                console=Console(),
            )
        except Interrupted:
            print(f"Stopped. {CONTINUE}", file=sys.stderr)
            raise


def _clean_up(folder: Path) -> str:
    _remove_if_empty(folder)
    return CONTINUE


def _remove_if_empty(folder: Path) -> None:
    """Remove the folder if the comparison has written nothing into it."""
    if not [entry for entry in folder.iterdir() if entry.name != ".lock"]:
        shutil.rmtree(folder)


def _planned_runs(
    shared: list[str], choice: str, seeds: list[int], folder: Path
) -> "Iterator[PlannedRun]":
    """Plan the runs of `choice`: one for each seed."""
    from headscope.comparison.runs import PlannedRun

    try:
        typed = shlex.split(choice)
    except ValueError as error:
        raise UserError(f"compare.choices= {choice}: {error}") from error
    for word in typed:
        if _sets(word, (*COMPARISON_KEYS, *RUN_KEYS)):
            raise UserError(f"compare.choices= {choice}: {word} is not a key of a choice")
    choice_words = words.literal_arguments([*typed, *words.implied_data(typed)])
    composed: Any = OmegaConf.to_container(
        compose("compare", [*shared, *choice_words]), resolve=True
    )
    load_parts(composed["parts"])  # also those of an experiment that the choice names
    names = TrainConfig.__dataclass_fields__.keys()
    train_config = {key: composed[key] for key in composed.keys() & names}
    for seed in seeds:
        yield PlannedRun(choice, seed, parse(TrainConfig, train_config | {"seed": seed}), folder)


def _sets(word: str, keys: tuple[str, ...]) -> bool:
    """Whether the argument `word`, such as `seed=1`, sets one of `keys`. Nested keys also count:
    `compare.choices=` sets a key inside `compare`."""
    return "=" in word and word.partition("=")[0].lstrip("+~").partition(".")[0] in keys
