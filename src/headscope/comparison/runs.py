"""The runs of a comparison: what is planned, what is there already, and the training of the rest.

A run is written as soon as it is known: it has its summary.json, or a checkpoint to resume from.
"""

import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from headscope import checkpoint, stop
from headscope.config.training import TrainConfig
from headscope.errors import UserError
from headscope.training.build import build
from headscope.training.check import check
from headscope.training.recovery import newest_checkpoint, read_summary
from headscope.training.run import check_same_recipe, fit
from headscope.training.run_folder import is_run, leave, remove_leftovers


@dataclass(frozen=True)
class PlannedRun:
    """A run of `choice`, some words of the command line."""

    choice: str
    seed: int
    config: TrainConfig
    comparison: Path

    @property
    def name(self) -> str:
        """The choice in few words: `model/position=rotary model.heads=8` is `rotary heads=8`."""
        return re.sub(r"\bmodel(/\w+=|\.)", "", self.choice)

    @property
    def folder(self) -> Path:
        return self.comparison / re.sub(r"[^\w.=-]+", "_", self.name) / f"seed_{self.seed}"

    @property
    def last(self) -> Path:
        return self.folder / "checkpoints" / "last.ckpt"

    @property
    def finished(self) -> bool:
        return read_summary(self.folder) is not None and self.last.is_file()

    def summary(self) -> dict[str, Any]:
        """What a finished run learned."""
        found = read_summary(self.folder)
        assert found is not None
        return found


def check_plan(runs: Sequence[PlannedRun]) -> None:
    """Raises UserError when a run cannot be made, two would share a folder, or a folder holds a
    run of another configuration."""
    if len({run.folder for run in runs}) < len(runs):
        raise UserError("two of compare.choices= have the same name, without its odd characters")
    for run in runs:
        try:
            check(run.config)
        except UserError as error:
            raise UserError(f"{run.choice}: {error}") from error
        if is_run(run.folder):
            check_same_recipe(newest_checkpoint(run.folder), run.config)


def check_same_text(runs: Sequence[PlannedRun]) -> None:
    """Raises UserError when a file has changed between runs that name the same text."""
    stores: dict[str, str] = {}
    for run in runs:
        own = checkpoint.read(run.last)["headscope"]
        text = json.dumps([own["config"]["data"], own["config"]["tokenizer"]])
        if stores.setdefault(text, own["store"]) != own["store"]:
            raise UserError(
                f"{run.folder} was trained on another text than those before it, of the same name: "
                "name= gives this comparison a folder of its own"
            )


def train_all(runs: Sequence[PlannedRun], console: Console) -> None:
    """Make every run that is not finished, one after the other."""
    waiting = [run for run in runs if not run.finished]
    if len(waiting) < len(runs):
        console.print(f"{len(runs) - len(waiting)} of {len(runs)} runs are there already")
    started = time.monotonic()
    for number, run in enumerate(waiting):
        summary = train(run, console)
        left = (time.monotonic() - started) / (number + 1) * (len(waiting) - number - 1)
        console.print(
            f"{len(runs) - len(waiting) + number + 1} of {len(runs)}: {run.name}, seed "
            f"{run.seed}: {summary['val_bits_per_byte']:.4f} bits per byte after "
            f"{summary['train_seconds']:.0f} s of training; about {left / 60:.0f} min left",
            highlight=False,
            soft_wrap=True,
        )


def train(run: PlannedRun, console: Console) -> dict[str, Any]:
    """One run, from where it was."""
    try:
        with stop.on_stop(partial(leave, run.folder, keep=False)):
            built = build(
                run.config,
                folder=run.folder,
                console=console if console.is_terminal else Console(quiet=True),
                found=newest_checkpoint(run.folder) if is_run(run.folder) else None,
            )
            remove_leftovers(run.folder)  # of a process that was killed before it saved
            return fit(built)
    except UserError as error:
        raise UserError(f"{run.choice}, seed {run.seed}: {error}") from error
