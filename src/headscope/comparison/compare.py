"""A comparison from its plan to its table: python scripts/compare.py."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from headscope.comparison.figures import at_lengths, figures_of, measure_speed
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
    """Train what is not trained yet, evaluate and time it; print and write what came of it.

    Everything is written as soon as it is known, so that a comparison that was stopped goes on
    where it was.

    Raises UserError before anything is trained when a setting or a size does not fit, or
    `folder`, which the caller has locked, holds runs of another recipe.
    """
    for size in block_sizes:
        if size < 1:
            raise UserError(f"compare.block_sizes: {size} must be at least 1")
    if speed_rounds < 0:
        raise UserError(f"speed_rounds={speed_rounds} must be 0 or more")
    check_plan(runs)
    # A seed of every choice before the next: what goes wrong in one is seen early.
    train_all(sorted(runs, key=lambda run: seeds_of(runs).index(run.seed)), console)
    check_same_text(runs)
    rows = measured(runs, folder, block_sizes, speed_rounds, console)
    write_files(rows, folder, block_sizes)
    print_tables(rows, folder, console)


def seeds_of(runs: Sequence[PlannedRun]) -> list[int]:
    return list(dict.fromkeys(run.seed for run in runs))


def measured(
    runs: Sequence[PlannedRun],
    folder: Path,
    block_sizes: Sequence[int],
    speed_rounds: int,
    console: Console,
) -> list[dict[str, Any]]:
    """A row of figures for each choice."""
    choices: dict[str, list[PlannedRun]] = {}
    for run in runs:
        choices.setdefault(run.name, []).append(run)
    # One seed is enough where the differences are large, and it is slow.
    firsts = [of_choice[0] for of_choice in choices.values()]
    lengths = {run.name: at_lengths(run, block_sizes, console) for run in firsts}
    speed = measure_speed(firsts, folder, rounds=speed_rounds, console=console)
    return [
        {"choice": name, **figures_of(of_choice), **speed.get(name, {}), **lengths[name]}
        for name, of_choice in choices.items()
    ]
