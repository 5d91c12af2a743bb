"""Measures the memory of a training step: without and with the options that save memory, and with
GPT-2 of the package transformers."""

from dataclasses import replace
from functools import partial

from headscope.benchmarks import runner
from headscope.benchmarks.runner import Request, Result
from headscope.benchmarks.show import Bars
from headscope.benchmarks.step import measure_isolated, step_plan
from headscope.benchmarks.transformers import check_gpt2
from headscope.training.build import precision_of

OURS, THEIRS = "headscope", "transformers"


def measure(request: Request) -> Result:
    """Measures the peak memory and the milliseconds of a training step. Every measurement runs in
    its own process.

    Raises RuntimeError when the losses of the first step differ. These losses should be equal,
    because all models start from the same weights.
    """
    plan = step_plan(request).changed({"loss_chunk_tokens": None, "checkpoint_activations": False})
    chunked = {"loss_chunk_tokens": request.run.trainer.loss_chunk_tokens or "auto"}
    checkpointed = {"checkpoint_activations": True}
    plans = {}
    if request.suite.peers:
        check_gpt2(request.run.model, request)
        plans[THEIRS] = replace(plan, transformers=True)
    plans |= {
        OURS: plan,
        f"{OURS}, chunked loss": plan.changed(chunked),
        f"{OURS}, activation checkpointing": plan.changed(checkpointed),
        f"{OURS}, both": plan.changed(chunked | checkpointed),
    }
    sides = {name: partial(measure_isolated, side) for name, side in plans.items()}
    measured = runner.alternate(sides)
    losses = {name: figures["first_loss"] for name, [figures] in measured.items()}
    runner.require_equal_losses(losses, OURS, tolerance=1e-4)
    rows, run = runner.summarize(measured, reference=OURS), plan.run
    title = (
        f"{measured[OURS][0]['parameters']:,} parameters, vocabulary of {plan.vocab_size:,}, "
        f"{run.trainer.batch_size} x {run.model.block_size:,} tokens, {precision_of(run.trainer)}"
    )
    return Result(
        {title: rows},
        {"peak_mib": "peak, MiB", "milliseconds": "milliseconds"},
        "Peak: weights, gradients, optimizer state, activations and workspace. Milliseconds: "
        f"median of {plan.rounds} steps. Ratio: to {OURS} without these options.",
        "Memory of a training step",
        [Bars(title, f"peak in MiB, x: ratio to {OURS}", rows, "peak_mib")],
    )
