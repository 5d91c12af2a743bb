"""Running a comparison: python scripts/compare.py."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from headscope.comparison.figures import bits_per_byte_at_lengths, measure_speed, run_figures
from headscope.comparison.runs import PlannedRun, check_plan, check_same_text, train_all
from headscope.comparison.tables import print_tables, write_files
from headscope.errors import UserError


def compare_runs(
    runs: Sequence[PlannedRun],
    *,
    folder: Path,
    block_sizes: Sequence[int],
    speed_rounds: int,
    console: Console,
) -> None:
    """Train, evaluate and time the runs, print the tables and write the results to `folder`.

    Each result is written as soon as it is known, so a stopped comparison continues where it
    stopped. The caller must hold the lock of `folder`.

    Raises UserError before the training if a setting is invalid, or if `folder` has runs with other
    settings.
    """
    for size in block_sizes:
        if size < 1:
            raise UserError(f"compare.block_sizes: {size} must be at least 1")
    if speed_rounds < 0:
        raise UserError(f"speed_rounds={speed_rounds} must be 0 or more")
    check_plan(runs)
    # All choices with the first seed come first, so that a failing choice is found early.
    train_all(sorted(runs, key=lambda run: seeds_of(runs).index(run.seed)), console)
    check_same_text(runs)
    rows = comparison_rows(runs, folder, block_sizes, speed_rounds, console)
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
    """One row of figures per choice."""
    choices: dict[str, list[PlannedRun]] = {}
    for run in runs:
        choices.setdefault(run.name, []).append(run)
    # Only the first seed: other context lengths take long and differ by more than the seeds do.
    first_seed = [choice_runs[0] for choice_runs in choices.values()]
    lengths = {run.name: bits_per_byte_at_lengths(run, block_sizes, console) for run in first_seed}
    speed = measure_speed(first_seed, folder, rounds=speed_rounds, console=console)
    return [
        {"choice": name, **run_figures(choice_runs), **speed.get(name, {}), **lengths[name]}
        for name, choice_runs in choices.items()
    ]
