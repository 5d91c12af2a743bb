"""Compares the estimated memory of training runs with the measured memory of their processes.

Every run trains in its own process, first with freed memory returned to the system, then with freed
memory kept, as in training when memory is not scarce (`headscope.training.process`).
"""

import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from headscope.analysis.pictures.style import BLUE, ORANGE
from headscope.benchmarks import runner
from headscope.benchmarks.runner import Figures, Request, Result
from headscope.benchmarks.show import Line, Lines
from headscope.config.training import TrainConfig
from headscope.errors import UserError
from headscope.training.fit import changed
from headscope.training.process import prepare_process

STEPS = 4
"""Training steps of each run, before a validation."""


@dataclass(frozen=True)
class RunPlan:
    """What a process measures: the run, and whether the process keeps freed memory."""

    run: TrainConfig
    keep_freed: bool


def measure(request: Request) -> Result:
    """Measures the peak memory of every run of `suite.shapes`."""
    if sys.platform != "linux" or request.device.type != "cpu":
        raise UserError("suite=estimate measures the memory of a process on a CPU under Linux")
    own = [word for word in request.words if not word.startswith(("suite", "output="))]
    rows = []
    for shape in request.suite.shapes:
        words = ["callbacks=plain", "~logger", *own, *shlex.split(shape)]
        config = request.compose(TrainConfig, "train", words)
        returned, kept = (
            runner.in_fresh_process(measure_run, RunPlan(config, keep_freed))
            for keep_freed in (False, True)
        )
        row = {
            "side": shape,
            "estimated": round(returned["estimated"]),
            "measured": round(returned["peak"]),
            "ratio": f"{returned['estimated'] / returned['peak']:.3f}",
            "kept": round(kept["peak"]),
            "before": round(returned["before"]),
        }
        print(row, file=sys.stderr)
        rows.append(row)
    title = "Estimated and measured memory of training runs"
    by_size = sorted(rows, key=lambda row: row["measured"])
    sizes = [row["measured"] for row in by_size]
    lines = [
        Line("equal", sizes, sizes),
        Line("estimated", sizes, [row["estimated"] for row in by_size], BLUE),
        Line("measured, freed memory kept", sizes, [row["kept"] for row in by_size], ORANGE),
    ]
    return Result(
        {title: rows},
        {
            "estimated": "estimated, MiB",
            "measured": "measured, MiB",
            "ratio": "estimated / measured",
            "kept": "freed memory kept, MiB",
            "before": "before, MiB",
        },
        f"Measured: peak resident memory of a process that trains {STEPS} steps and validates, "
        "minus its memory before. Freed memory kept: the same if memory is not scarce. Before: "
        "the memory of the interpreter and the libraries.",
        title,
        [Lines("memory, MiB", "measured, MiB", lines, 2)],
    )


def measure_run(plan: RunPlan) -> Figures:
    """Trains a few steps. Returns the estimated memory, the peak memory of the process minus its
    memory before, and its memory before, in MiB."""
    prepare_process(keep_freed=plan.keep_freed)
    short = changed(plan.run, max_steps=STEPS, val_every_steps=STEPS)
    # A tiny run loads the libraries, so that their memory does not count.
    model = replace(short.model, embed_dim=8 * short.model.heads, layers=1, block_size=8)
    runner.trained(changed(replace(short, model=model), batch_size=1, val_batch_size=1))
    before = runner.process_mib("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # resets VmHWM
    run = runner.trained(short)
    return {
        "estimated": run.estimate.peak / 2**20,
        "peak": runner.process_mib("VmHWM") - before,
        "before": before,
    }
