"""Compares the measured memory of training runs with the estimate, with the options that save
memory, and with GPT-2 of the package transformers.

Every run trains a few steps in a separate process. On a CPU, its memory is the resident memory of
the process, which returns freed memory to the system. On a GPU, it is what PyTorch has allocated.
Memory from before the model was built does not count.
"""

import gc
import shlex
import statistics
import sys
import time
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from benchmarks import runner
from benchmarks.race import SHARED
from benchmarks.runner import Figures, Request, Result
from benchmarks.table import Row
from benchmarks.transformers import check_gpt2, gpt2_of
from headscope.config.training import TrainConfig
from headscope.errors import UserError
from headscope.training.bare_loop import bare_loop
from headscope.training.build import precision_of
from headscope.training.callbacks.clock import wait_for_gpu
from headscope.training.fit import changed
from headscope.training.process import prepare_process

OURS, THEIRS = "headscope", "transformers"


@dataclass(frozen=True)
class RunPlan:
    """What a process measures: a run, or with `transformers` the same training of a GPT-2 of that
    package, in a plain loop."""

    run: TrainConfig
    on_gpu: bool
    transformers: bool = False


def measure(request: Request) -> Result:
    """Measures the run of the command line without and with the options that save memory, and then
    the default run with each of `suite.changes`.

    Raises RuntimeError when the losses of the first step differ. These losses should be equal,
    because all sides start from the same weights and batch.
    """
    plan, on_gpu = request.suite, request.device.type == "cuda"
    if not on_gpu and (request.device.type, sys.platform) != ("cpu", "linux"):
        raise UserError("memory is measured on a CPU under Linux or on an NVIDIA GPU")

    def side(config: TrainConfig, **more: Any) -> RunPlan:
        steps = plan.rounds + 1  # the first step is not timed
        return RunPlan(changed(config, max_steps=steps, val_every_steps=steps), on_gpu, **more)

    run = replace(request.run, logger=None)
    run = changed(run, loss_chunk_tokens=None, checkpoint_activations=False)
    chunked = {"loss_chunk_tokens": request.run.trainer.loss_chunk_tokens or "auto"}
    checkpointed = {"checkpoint_activations": True}
    plans = {}
    if plan.peers:
        check_gpt2(run.model, request)
        plans[THEIRS] = side(run, transformers=True)
    plans |= {
        OURS: side(run),
        f"{OURS}, chunked loss": side(changed(run, **chunked)),
        f"{OURS}, activation checkpointing": side(changed(run, **checkpointed)),
        f"{OURS}, both": side(changed(run, **chunked, **checkpointed)),
    }
    measured = runner.alternate(
        {name: partial(runner.in_fresh_process, measure_run, each) for name, each in plans.items()}
    )
    of_run = {name: figures for name, [figures] in measured.items()}
    losses = {name: figures["first_loss"] for name, figures in of_run.items()}
    runner.require_equal_losses(losses, OURS)
    title = (
        f"{of_run[OURS]['parameters']:,} parameters, vocabulary of "
        f"{of_run[OURS]['vocab_size']:,}, {run.trainer.batch_size} x {run.model.block_size:,} "
        f"tokens, {precision_of(run.trainer)}"
    )
    groups = {title: [row(name, figures) for name, figures in of_run.items()], "Other runs": []}
    shared = [word for word in request.words if word.startswith(SHARED)]
    for words in plan.changes:
        given = ["callbacks=plain", "~logger", *shared, *shlex.split(words)]
        config = request.compose(TrainConfig, "train", given)
        figures = runner.in_fresh_process(measure_run, side(config))
        groups["Other runs"].append(row(words, figures))
        print(groups["Other runs"][-1], file=sys.stderr)
    return Result(
        groups,
        {
            "estimated_mib": "estimated, MiB",
            "peak_mib": "measured, MiB",
            "share": "estimated / measured",
            "milliseconds": "milliseconds per step",
        },
        f"Measured: peak memory of a process that trains {plan.rounds + 1} steps and validates, "
        "minus its memory before. On a CPU, the process returns freed memory at once. "
        f"Milliseconds: median of {plan.rounds} steps after the first.",
        "Memory of training runs",
        "peak memory, MiB (shorter is better)",
        {"estimated_mib": "estimated", "peak_mib": "measured"},
    )


def row(name: str, figures: Figures) -> Row:
    """A row of the table. GPT-2 of transformers has no estimate."""
    estimated, peak = figures.get("estimated_mib"), figures["peak_mib"]
    return {
        "side": name,
        "estimated_mib": round(estimated) if estimated else None,
        "peak_mib": round(peak),
        "share": round(estimated / peak, 3) if estimated else None,
        "milliseconds": figures["milliseconds"],
    }


def measure_run(plan: RunPlan) -> Figures:
    """Trains a few steps. Returns the estimated and the measured memory in MiB, the time of a step,
    and the loss of the first step."""
    prepare_process(keep_freed=False)
    # A tiny run loads the libraries, so that their memory does not count.
    model = replace(plan.run.model, embed_dim=8 * plan.run.model.heads, layers=1, block_size=8)
    train(replace(plan, run=changed(replace(plan.run, model=model), batch_size=1)))
    before = memory_mib(plan, "VmRSS")
    if plan.on_gpu:
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # resets VmHWM
    figures = train(plan)
    return {"peak_mib": memory_mib(plan, "VmHWM") - before, **figures}


def memory_mib(plan: RunPlan, field: str) -> float:
    if not plan.on_gpu:
        return runner.process_mib(field)
    peak = field == "VmHWM"
    used = torch.cuda.max_memory_allocated() if peak else torch.cuda.memory_allocated()
    return used / 2**20


def train(plan: RunPlan) -> Figures:
    if plan.transformers:
        loop = bare_loop(plan.run, theirs=partial(gpt2_of, config=plan.run.model))
        gc.collect()  # removes our model, which was converted
        loop.run(1)
        times = [loop.run(1) for _ in range(plan.run.trainer.max_steps - 1)]
        return {"first_loss": loop.losses[0], "milliseconds": statistics.median(times)}
    steps = Steps()
    run = runner.trained(plan.run, steps)
    ends = [steps.ends[step] for step in sorted(steps.ends)]
    return {
        "estimated_mib": run.estimate.peak / 2**20,
        "first_loss": steps.first_loss,
        "milliseconds": 1e3 * statistics.median(b - a for a, b in pairwise(ends)),
        "parameters": run.model.parameter_count(),
        "vocab_size": run.store.tokenizer.vocab_size,
    }


class Steps(Callback):
    """Records the time at which each step ends, and the loss of the first step."""

    def __init__(self) -> None:
        self.ends: dict[int, float] = {}
        self.first_loss = 0.0

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        wait_for_gpu()
        if not self.ends:
            self.first_loss = float(outputs["loss"])
        self.ends.setdefault(trainer.global_step, time.perf_counter())
