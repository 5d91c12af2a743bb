"""The runs of a sweep or a comparison, and the table of a sweep."""

import math
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headscope.comparison.tables import MIN_WIDTH, cell, write_csv
from headscope.files import read_summary
from headscope.terminal import printable
from headscope.training.run_folder import ERROR, shown

RESULTS = ("val_loss", "val_bits_per_byte", "train_seconds")
"""The entries of summary.json that are shown for each run."""


@dataclass(frozen=True)
class SweepRun:
    """A run of a sweep in its `folder`. `settings` are its words, such as {"seed": "1"}."""

    settings: dict[str, str]
    folder: Path

    @cached_property
    def summary(self) -> dict[str, Any] | None:
        """The content of summary.json, if the run has finished."""
        return read_summary(self.folder)

    @property
    def error(self) -> str | None:
        """Why the run failed."""
        file = self.folder / ERROR
        return file.read_text(encoding="utf-8") if file.is_file() else None

    @property
    def state(self) -> str:
        return "failed" if self.error else "finished" if self.summary else "unfinished"

    @property
    def last(self) -> Path:
        return self.folder / "checkpoints" / "last.safetensors"


def swept_keys(runs: Sequence[SweepRun]) -> list[str]:
    """The keys whose values are not the same in all runs."""
    keys = dict.fromkeys(key for run in runs for key in run.settings)
    return [key for key in keys if len({run.settings.get(key) for run in runs}) > 1]


def by_settings(
    runs: Sequence[SweepRun], key: Callable[[SweepRun], Any]
) -> dict[Any, list[SweepRun]]:
    groups: dict[Any, list[SweepRun]] = {}
    for run in runs:
        groups.setdefault(key(run), []).append(run)
    return groups


def rows_of(runs: Sequence[SweepRun], keys: Sequence[str]) -> list[dict[str, Any]]:
    """One row for each combination of the values of `keys`, that with the lowest mean validation
    loss first, and those without a result last.

    A row has the keys `run` (the names of the runs' folders), `keys`, `seeds`, `state`, and for
    each of `RESULTS` the mean over the finished runs. With several finished runs, it also has
    `deviation`, the sample standard deviation of the validation losses.
    """
    rows = []
    for values, group in by_settings(
        runs, lambda run: tuple(run.settings.get(key, "") for key in keys)
    ).items():
        row: dict[str, Any] = dict(zip(keys, values, strict=True))
        row["run"] = " ".join(run.folder.name for run in group)
        row["seeds"] = " ".join(run.settings.get("seed", "") for run in group)
        finished = [run.summary for run in group if run.state == "finished" and run.summary]
        for name in RESULTS if finished else ():
            row[name] = statistics.mean(summary[name] for summary in finished)
        if len(finished) > 1:
            row["deviation"] = statistics.stdev(summary["val_loss"] for summary in finished)
        states = {run.state for run in group}
        row["state"] = ", ".join(
            state if len(states) == 1 else f"{sum(run.state == state for run in group)} {state}"
            for state in ("finished", "unfinished", "failed")
            if state in states
        )
        rows.append(row)
    rows.sort(key=lambda row: (row.get("val_loss", math.inf), "failed" in row["state"]))
    if rows and "val_loss" in rows[0]:
        rows[0]["state"] = rows[0]["state"].replace("finished", "best", 1)
    return rows


def report(runs: Sequence[SweepRun], folder: Path, console: Console) -> bool:
    """Prints a table of the runs, and the errors. Writes sweep.csv, with one line for each run, to
    the folder of the sweep. Returns whether all runs have finished."""
    keys = swept_keys(runs)
    file = folder / "sweep.csv"
    lines = []
    for run in runs:
        results = {name: run.summary[name] for name in RESULTS} if run.summary else {}
        settings = {key: run.settings.get(key, "") for key in keys}
        line = {"run": run.folder.name, **settings, **results, "state": run.state}
        lines.append(line | {"error": run.error or ""})
    lines.sort(key=lambda line: (line.get("val_loss", math.inf), line["state"] == "failed"))
    if lines and lines[0]["state"] == "finished":
        lines[0]["state"] = "best"
    write_csv(lines, ["run", *keys, *RESULTS, "state", "error"], file)
    several = "seed" in keys
    keys = [key for key in keys if key != "seed"]
    console = Console(file=console.file, width=max(console.width, MIN_WIDTH), quiet=console.quiet)
    console.print()
    console.print(_table(rows_of(runs, keys), keys, several))
    console.print(f"\nWritten: {shown(file)}", highlight=False, markup=False, soft_wrap=True)
    return report_unfinished(runs)


def report_unfinished(runs: Sequence[SweepRun]) -> bool:
    """Prints the runs without a result. Returns whether there are none."""
    missing = [run for run in runs if run.state != "finished"]
    if missing:
        print("\nThese runs have no result. The same command runs them again:", file=sys.stderr)
    keys = swept_keys(runs) or list(dict.fromkeys(key for run in runs for key in run.settings))
    for run in missing:
        words = " ".join(f"{key}={run.settings[key]}" for key in keys if key in run.settings)
        reason = run.error or "its process ended before it finished"
        print(f"  {printable(f'{words}: {reason}')}", file=sys.stderr)
    return not missing


def _table(rows: Sequence[dict[str, Any]], keys: Sequence[str], several: bool) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("runs" if several else "run", justify="right")
    for key in [*keys, *(["seeds"] if several else [])]:
        table.add_column(Text(printable(key)), justify="right", overflow="fold")
    names = ["validation loss", "±", "bits per byte", "training, s"]
    results = ["val_loss", "deviation", "val_bits_per_byte", "train_seconds"]
    digits = [".4f", ".4f", ".4f", ".1f"]
    columns = list(zip(names, results, digits, strict=True))
    columns = columns if several else [each for each in columns if each[0] != "±"]
    for name, _, _ in columns:
        table.add_column(name, justify="right")
    table.add_column("state", no_wrap=True)
    for row in rows:
        settings = [*keys, *(["seeds"] if several else [])]
        table.add_row(
            row["run"],
            *(Text(printable(row[key])) for key in settings),
            *(cell(row, key, form) for _, key, form in columns),
            row["state"],
            style="bold" if "best" in row["state"] else None,
        )
    return table
