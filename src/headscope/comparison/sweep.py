"""The results of a sweep: a table, and the file sweep.csv."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headscope.comparison.tables import MIN_WIDTH, cell, write_csv
from headscope.files import read_summary
from headscope.terminal import printable
from headscope.training.run_folder import shown

if TYPE_CHECKING:
    from headscope.cli.sweeps import SweepRun

RESULTS = ("val_loss", "val_bits_per_byte", "train_seconds")
"""The entries of summary.json that are shown for each run."""


def settings_of(run: "SweepRun") -> dict[str, str]:
    parts = [word.partition("=") for word in run.words]
    return {key.lstrip("+"): value.strip("\"'").replace("\\'", "'") for key, _, value in parts}


def swept_keys(runs: "Sequence[SweepRun]") -> list[str]:
    """The keys whose values are not the same in all runs."""
    settings = [settings_of(run) for run in runs]
    keys = dict.fromkeys(key for each in settings for key in each)
    return [key for key in keys if len({each.get(key) for each in settings}) > 1]


def rows_of(runs: "Sequence[SweepRun]") -> list[dict[str, Any]]:
    """One row per run, the lowest validation loss first. Runs without a result come last.

    A row has the keys `run` (the name of the run's folder), the swept keys, `state` (best,
    finished, unfinished or failed), and `error` if the run failed. If the run has finished, the row
    also has the keys of `RESULTS`.
    """
    keys = swept_keys(runs)
    rows = []
    for run in runs:
        row: dict[str, Any] = {"run": run.folder.name if run.folder else ""}
        row |= {key: settings_of(run).get(key, "") for key in keys}
        summary = None if run.error or not run.folder else read_summary(run.folder)
        if summary:
            row |= {"state": "finished", **{key: summary[key] for key in RESULTS}}
        elif run.error:
            row |= {"state": "failed", "error": run.error}
        else:
            row |= {"state": "unfinished"}
        rows.append(row)
    rows.sort(key=lambda row: (row.get("val_loss", float("inf")), row["state"] == "failed"))
    if rows and "val_loss" in rows[0]:
        rows[0]["state"] = "best"
    return rows


def report(runs: "Sequence[SweepRun]", folder: Path, console: Console) -> None:
    """Prints a table of the runs, and writes sweep.csv to the folder of the sweep."""
    rows, keys = rows_of(runs), swept_keys(runs)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "sweep.csv"
    write_csv(rows, ["run", *keys, *RESULTS, "state", "error"], file)
    console = Console(file=console.file, width=max(console.width, MIN_WIDTH), quiet=console.quiet)
    console.print()
    console.print(_table(rows, keys))
    console.print(
        f"\nWritten: {shown(file)}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def _table(rows: Sequence[dict[str, Any]], keys: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("run", justify="right", no_wrap=True)
    for key in keys:
        table.add_column(Text(printable(key)), justify="right", overflow="fold")
    for name in ("validation loss", "bits per byte", "training, s"):
        table.add_column(name, justify="right")
    table.add_column("state", no_wrap=True)
    for row in rows:
        table.add_row(
            row["run"],
            *(Text(printable(row[key])) for key in keys),
            cell(row, "val_loss", ".4f"),
            cell(row, "val_bits_per_byte", ".4f"),
            cell(row, "train_seconds", ".1f"),
            row["state"],
            style="bold" if row["state"] == "best" else None,
        )
    return table
