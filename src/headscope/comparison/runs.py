"""Plans the runs of a comparison, and trains the runs that are not finished.

A finished run has a summary.json. A stopped run is resumed from its newest checkpoint.
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
from headscope.files import read_summary
from headscope.training.build import build
from headscope.training.check import check
from headscope.training.resume import check_same_config, newest_checkpoint
from headscope.training.run import fit
from headscope.training.run_folder import clean_up, is_run, remove_leftovers


@dataclass(frozen=True)
class PlannedRun:
    """A run of a comparison. `choice` is the part of the command line that differs between the
    runs, such as `model/position=rotary model.heads=8`. `comparison` is the folder of the
    comparison."""

    choice: str
    seed: int
    config: TrainConfig
    comparison: Path

    @property
    def name(self) -> str:
        """A short name for the choice: `rotary heads=8` for `model/position=rotary
        model.heads=8`."""
        return re.sub(r"\bmodel(/\w+=|\.)", "", self.choice)

    @property
    def folder(self) -> Path:
        return self.comparison / re.sub(r"[^\w.=-]+", "_", self.name) / f"seed_{self.seed}"

    @property
    def last(self) -> Path:
        return self.folder / "checkpoints" / "last.safetensors"

    @property
    def finished(self) -> bool:
        return read_summary(self.folder) is not None and self.last.is_file()

    def summary(self) -> dict[str, Any]:
        """The summary.json of a finished run."""
        summary = read_summary(self.folder)
        assert summary is not None
        return summary


def check_plan(runs: Sequence[PlannedRun]) -> None:
    """Raises UserError if the configuration of a run is invalid, if two runs have the same folder,
    or if a folder already contains a run with another configuration."""
    if len({run.folder for run in runs}) < len(runs):
        raise UserError(
            "compare.choices=: the folders of two choices have the same name, in which special "
            "characters are replaced by _; change or remove one of them"
        )
    for run in runs:
        try:
            check(run.config)
        except UserError as error:
            raise UserError(f"{run.choice}: {error}") from error
        if is_run(run.folder):
            check_same_config(newest_checkpoint(run.folder), run.config)


def check_same_text(runs: Sequence[PlannedRun]) -> None:
    """Raises UserError if two runs have the same settings of text and tokenizer, but were trained
    on different tokens. This happens if a text file has changed between the two runs."""
    stores: dict[str, str] = {}
    for run in runs:
        entry = checkpoint.read(run.last).data
        text = json.dumps([entry["config"]["data"], entry["config"]["tokenizer"]])
        if stores.setdefault(text, entry["store"]) != entry["store"]:
            raise UserError(
                f"{run.folder} was trained on another text than the runs before it: a file of the "
                "text has changed; start a new comparison with another name="
            )


def train_all(runs: Sequence[PlannedRun], console: Console) -> None:
    """Train the runs that are not finished, one after the other."""
    unfinished = [run for run in runs if not run.finished]
    if len(unfinished) < len(runs):
        console.print(f"{len(runs) - len(unfinished)} of {len(runs)} runs are already finished")
    started = time.monotonic()
    for number, run in enumerate(unfinished):
        summary = train(run, console)
        seconds_left = (time.monotonic() - started) / (number + 1) * (len(unfinished) - number - 1)
        console.print(
            f"{len(runs) - len(unfinished) + number + 1} of {len(runs)}: {run.name}, seed "
            f"{run.seed}: {summary['val_bits_per_byte']:.4f} bits per byte after "
            f"{summary['train_seconds']:.0f} s of training; about {seconds_left / 60:.0f} min left",
            highlight=False,
            soft_wrap=True,
        )


def train(run: PlannedRun, console: Console) -> dict[str, Any]:
    """Train one run, or resume it from its newest checkpoint. Returns its summary."""
    try:
        with stop.on_stop(partial(clean_up, run.folder)):
            built = build(
                run.config,
                folder=run.folder,
                console=console if console.is_terminal else Console(quiet=True),
                resume=newest_checkpoint(run.folder) if is_run(run.folder) else None,
            )
            remove_leftovers(run.folder)  # files of a process that was killed while saving
            return fit(built)
    except UserError as error:
        raise UserError(f"{run.choice}, seed {run.seed}: {error}") from error
