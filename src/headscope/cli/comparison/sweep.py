"""The runs of a sweep or a comparison, and the report of a sweep."""

import math
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

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
    def summary(self) -> dict[str, Any]:
        """The content of summary.json, empty if the run has not finished."""
        return read_summary(self.folder) or {}

    @cached_property
    def error(self) -> str:
        """Why the run failed, or ""."""
        file = self.folder / ERROR
        return file.read_text(encoding="utf-8") if file.is_file() else ""

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


def report(runs: Sequence[SweepRun], folder: Path) -> bool:
    """Prints a table of the runs, the lowest validation loss first, and the errors. Runs that
    differ only in the seed are one line of the table: their means, and the sample standard
    deviation of their losses. Writes sweep.csv, with one line for each run, to the folder of the
    sweep. Returns whether all runs have finished."""
    keys = swept_keys(runs)
    from headscope.cli.comparison.tables import print_table, write_csv  # imports rich

    lines = [row_of([run], keys) | {"error": run.error} for run in runs]
    columns = ["run", *keys, *RESULTS, "state", "error"]
    write_csv(best_first(lines), columns, folder / "sweep.csv")
    several = "seed" in keys
    keys = [key for key in keys if key != "seed"]
    groups = by_settings(runs, lambda run: tuple(run.settings.get(key) for key in keys))
    shown_columns = {
        "runs" if several else "run": ("run", ""),
        **{key: (key, "") for key in [*keys, *(["seed"] if several else [])]},
        "validation loss": ("val_loss", ".4f"),
        **({"±": ("deviation", ".4f")} if several else {}),
        "bits per byte": ("val_bits_per_byte", ".4f"),
        "training, s": ("train_seconds", ".1f"),
        "state": ("state", ""),
    }
    rows = best_first([row_of(group, keys) for group in groups.values()])
    print_table(rows, shown_columns)
    print(f"\nWritten: {shown(folder / 'sweep.csv')}", flush=True)
    return report_unfinished(runs)


def row_of(runs: Sequence[SweepRun], keys: Sequence[str]) -> dict[str, Any]:
    """The row of runs with the same values of `keys`, except the seed: `run` (the names of their
    folders), `keys`, `seed`, `state`, the means of `RESULTS` over the finished runs, and with
    several of them `deviation`, the sample standard deviation of their validation losses."""
    row: dict[str, Any] = {key: runs[0].settings.get(key, "") for key in keys}
    row["run"] = " ".join(run.folder.name for run in runs)
    row["seed"] = " ".join(run.settings.get("seed", "") for run in runs)
    summaries = [run.summary for run in runs if run.state == "finished"]
    for name in RESULTS:
        found = [summary[name] for summary in summaries if summary[name] is not None]
        row |= {name: statistics.mean(found)} if found else {}
        if name == "val_loss" and len(found) > 1:
            row["deviation"] = statistics.stdev(found)
    states = [run.state for run in runs]
    counts = {state: states.count(state) for state in ("finished", "unfinished", "failed")}
    mixed = [f"{count} {state}" for state, count in counts.items() if count]
    row["state"] = states[0] if len(mixed) == 1 else ", ".join(mixed)
    return row


def best_first(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows, the lowest validation loss first. If its runs have finished, its state is best."""
    rows.sort(key=lambda row: (row.get("val_loss", math.inf), row["state"] == "failed"))
    if rows and rows[0]["state"] == "finished":
        rows[0]["state"] = "best"
    return rows


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
