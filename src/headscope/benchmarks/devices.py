"""Compares training with one process to training with several processes, on the CPU."""

import json
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

from headscope.benchmarks import runner
from headscope.benchmarks.runner import Figures, PeakMemory, Request, Result
from headscope.benchmarks.show import Bars
from headscope.errors import UserError
from headscope.stop import on_stop, temporary_folder

SCRIPT = Path(__file__).parents[3] / "scripts" / "train.py"


def measure(request: Request) -> Result:
    """Trains with scripts/train.py: one process with several threads, and several processes with
    one thread each. Each training is repeated with AdamW, because `fsdp` needs it."""
    plan = request.suite
    words = [word for word in request.words if not word.startswith(("suite", "output="))]
    groups = {}
    for optimizer, strategies in (("muon", ["ddp"]), ("adamw", ["ddp", "fsdp"])):
        with temporary_folder() as folder:
            given = [
                *(*words, f"optimizer={optimizer}", f"store_dir={folder / 'data'}"),
                *(f"trainer.max_steps={plan.steps}", f"trainer.val_every_steps={plan.steps}"),
                *("trainer.accelerator=cpu", "trainer.final_validation=part", "callbacks=plain"),
            ]
            single = "1 process"
            sides = {single: partial(train, folder, given, 1, plan.processes)}
            for strategy in strategies:
                command = [*given, f"trainer.strategy={strategy}"]
                sides[f"{plan.processes} processes, {strategy}"] = partial(
                    train, folder, command, plan.processes, 1
                )
            train(folder, [*given, "trainer.max_steps=1"], 1, 1)  # makes the token store
            measured = runner.alternate(sides, plan.rounds)
        groups[f"optimizer={optimizer}"] = runner.summarize(measured, reference=single)
    return Result(
        groups,
        {"speed": "tokens/s", "memory_mib": "peak memory per process, MiB"},
        f"Median of {plan.rounds} rounds of {plan.steps} steps. One process has {plan.processes} "
        "threads, each of several processes has one. Peak memory: of the largest process during "
        "training, without file pages. Ratio: to one process in the same round.",
        "One process and several processes",
        [
            Bars(title, "tokens/s (longer is faster)", rows, "speed")
            for title, rows in groups.items()
        ],
    )


def train(folder: Path, words: list[str], processes: int, threads: int) -> Figures:
    """Trains with `processes` processes of `threads` threads. Returns tokens per second and the
    peak memory of the largest process during training."""
    run = folder / "run"
    shutil.rmtree(run, ignore_errors=True)
    command = [sys.executable, str(SCRIPT), *words, f"hydra.run.dir={run}"]
    with subprocess.Popen(
        [*command, f"trainer.devices={processes}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"},
        cwd=folder,
        text=True,
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        with on_stop(running.kill), PeakMemory(running.pid) as memory:
            for line in running.stdout:
                if line.startswith("Validating on"):
                    break
        errors = running.communicate()[1]
    if running.returncode:
        raise UserError(f"a run failed: {errors.strip()}")
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    return {"speed": summary["tokens_per_second"], "memory_mib": memory.peak}
