"""Trains a GPT: python scripts/train.py [key=value ...]; --help shows the keys."""

from collections.abc import Sequence
from pathlib import Path

from headscope import stop
from headscope.cli import command_line, train
from headscope.cli.sweeps import SweepRun
from headscope.training import processes


def report_sweep(runs: Sequence[SweepRun], folder: Path) -> None:
    """Prints a table of the runs, and writes it and a picture to the folder of the sweep."""
    from rich.console import Console

    from headscope.comparison.sweep import report

    report(runs, folder, Console())


if __name__ == "__main__":
    child, quiet = processes.starter() == "lightning", processes.rank() > 0
    if child:
        processes.end_with_first_process()
    with stop.stop_on_signal(quiet=quiet, until_end=True, with_parent=child):
        command_line.run(train.train, "train", prepare=train.arguments, report_sweep=report_sweep)
