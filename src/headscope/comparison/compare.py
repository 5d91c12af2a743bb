"""Runs a comparison (python scripts/compare.py)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from headscope.comparison.results import bits_per_byte_at_lengths, measure_speed, run_results
from headscope.comparison.runs import PlannedRun, check_plan, check_same_text, train_all
from headscope.comparison.tables import print_tables, write_files


def compare_runs(
    runs: Sequence[PlannedRun],
    *,
    folder: Path,
    block_sizes: Sequence[int],
    speed_rounds: int,
    console: Console,
) -> None:
    """Train, evaluate and time the runs, print the tables and write the results to `folder`.

    Each result is saved as soon as it is known, so a comparison that was stopped can continue from
    there. The caller must hold the lock of `folder`.

    Raises UserError before training starts, if a setting is invalid or if `folder` contains runs
    with other settings.
    """
    check_plan(runs)
    # Train all choices with the first seed before using the next seed, so that a choice that fails
    # is found early.
    train_all(sorted(runs, key=lambda run: seeds_of(runs).index(run.seed)), console)
    check_same_text(runs)
    rows = comparison_rows(runs, folder, block_sizes, speed_rounds, console)
    rows.sort(key=lambda row: row["bits_per_byte"])  # the best choice first
    write_files(rows, folder, block_sizes)
    print_tables(rows, folder, console)


def seeds_of(runs: Sequence[PlannedRun]) -> list[int]:
    return list(dict.fromkeys(run.seed for run in runs))


def comparison_rows(
    runs: Sequence[PlannedRun],
    folder: Path,
    block_sizes: Sequence[int],
    speed_rounds: int,
    console: Console,
) -> list[dict[str, Any]]:
    """One row of results for each choice."""
    choices: dict[str, list[PlannedRun]] = {}
    for run in runs:
        choices.setdefault(run.name, []).append(run)
    # Measure other context lengths and speed only for the first seed, because the measurements take
    # long. Bits per byte differ more between context lengths than between seeds.
    first_seed = [choice_runs[0] for choice_runs in choices.values()]
    lengths = {run.name: bits_per_byte_at_lengths(run, block_sizes, console) for run in first_seed}
    speed = measure_speed(first_seed, folder, rounds=speed_rounds, console=console)
    return [
        {"choice": name, **run_results(choice_runs), **speed.get(name, {}), **lengths[name]}
        for name, choice_runs in choices.items()
    ]
