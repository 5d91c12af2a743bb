"""Compares the measured memory of training runs with the estimate, with the options that save
memory, and with GPT-2 of the package transformers.

Every run trains a few steps in a separate process. On a CPU, its memory is the resident memory of
the process, which returns freed memory to the system. On a GPU, it is what PyTorch has allocated.
Memory from before the model was built does not count.
"""

import gc
import shlex
import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from benchmarks import runner
from benchmarks.race import SHARED
from benchmarks.runner import Figures, Request, Result
from benchmarks.transformers import check_gpt2, gpt2_of
from headscope.config.training import TrainConfig
from headscope.errors import UserError
from headscope.training.bare_loop import bare_loop
from headscope.training.callbacks.clock import clock_of
from headscope.training.fit import changed
from headscope.training.processes import prepare_process

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
    the default run with each of `suite.changes`."""
    plan, on_gpu = request.suite, request.device.type == "cuda"
    if not on_gpu and (request.device.type, sys.platform) != ("cpu", "linux"):
        raise UserError("memory is measured on a CPU under Linux or on an NVIDIA GPU")

    def side(config: TrainConfig, transformers: bool = False) -> partial[Figures]:
        steps = plan.rounds + 1  # the first step is before the optimizer has any state
        config = changed(config, max_steps=steps, val_every_steps=steps)
        run_plan = RunPlan(config, on_gpu, transformers)
        return partial(runner.in_fresh_process, measure_run, run_plan)

    run = replace(request.run, logger=None)
    run = changed(run, loss_chunk_tokens=None, checkpoint_activations=False)
    chunked = {"loss_chunk_tokens": request.run.trainer.loss_chunk_tokens or "auto"}
    checkpointed = {"checkpoint_activations": True}
    sides = {}
    if plan.peers:
        check_gpt2(run.model, request)
        sides[THEIRS] = side(run, transformers=True)
    sides |= {
        OURS: side(run),
        f"{OURS}, chunked loss": side(changed(run, **chunked)),
        f"{OURS}, activation checkpointing": side(changed(run, **checkpointed)),
        f"{OURS}, both": side(changed(run, **chunked, **checkpointed)),
    }
    shared = [word for word in request.words if word.startswith(SHARED)]
    for words in plan.changes:
        given = ["callbacks=plain", "~logger", *shared, *shlex.split(words)]
        sides[words] = side(request.compose(TrainConfig, "train", given))
    measured = {name: figures for name, [figures] in runner.alternate(sides).items()}
    rows, changes = [{"side": name, **measured[name]} for name in sides], len(plan.changes)
    return Result(
        "Memory of training runs",
        {"The run of the command line": rows[:-changes], "Other runs": rows[-changes:]},
        f"Peak: the largest memory of a process that trains {plan.rounds + 1} steps and validates, "
        "minus its memory before. On a CPU, the process returns freed memory at once. Share: "
        "estimated / peak. Milliseconds: mean time of a step.",
        "peak memory, MiB (shorter is better)",
        ["estimated_mib", "peak_mib"],
    )


def measure_run(plan: RunPlan) -> Figures:
    """Trains a few steps. Returns the estimated and the measured memory, and the time of a step."""
    prepare_process(keep_freed=False)
    # A tiny run loads the libraries, so that their memory does not count.
    model = replace(plan.run.model, embed_dim=8 * plan.run.model.heads, layers=1, block_size=8)
    train(replace(plan, run=changed(replace(plan.run, model=model), batch_size=1)))
    if plan.on_gpu:
        torch.cuda.reset_peak_memory_stats()
    else:
        # Resets VmHWM. Another counter, ru_maxrss, starts at the value of the parent process.
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    before = peak_mib(plan)
    estimated, milliseconds = train(plan)
    peak = peak_mib(plan) - before
    return {
        "estimated_mib": estimated and round(estimated),
        "peak_mib": round(peak),
        "share": estimated and round(estimated / peak, 3),
        "milliseconds": milliseconds,
    }


def peak_mib(plan: RunPlan) -> float:
    """The largest memory since the last reset. Just after a reset, this is the current memory."""
    on_gpu = plan.on_gpu
    return torch.cuda.max_memory_allocated() / 2**20 if on_gpu else runner.process_mib("VmHWM")


def train(plan: RunPlan) -> tuple[float | None, float]:
    """Trains, and returns the estimated memory in MiB, and the mean milliseconds of a step. GPT-2
    of transformers has no estimate."""
    steps = plan.run.trainer.max_steps
    if plan.transformers:
        loop = bare_loop(plan.run, theirs=partial(gpt2_of, config=plan.run.model))
        gc.collect()  # removes our model, which was converted
        return None, loop.run(steps)
    run = runner.train_in_temporary_folder(plan.run)
    return run.estimate.peak / 2**20, 1e3 * clock_of(run.trainer).seconds() / steps
