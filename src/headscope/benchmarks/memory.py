"""The memory of a training step: of ours, with what saves memory, and of transformers."""

from dataclasses import replace
from functools import partial

from headscope.benchmarks.runner import Request, Result, require_equal_losses, summarize
from headscope.benchmarks.show import Bars
from headscope.benchmarks.step import measure_isolated, step_plan
from headscope.errors import UserError
from headscope.training.build import precision_of

OURS, PEER = "headscope", "transformers"
PARTS = {
    "weights_mib": "weights",
    "gradients_mib": "gradients",
    "optimizer_mib": "optimizer state",
    "rest_mib": "activations, logits and work space",
}


def measure(request: Request) -> Result:
    """Peak memory and milliseconds of a step, each side in a process of its own. Raises
    RuntimeError when the first losses differ: all sides start from the same weights."""
    chunk = request.run.trainer.loss_chunk_tokens
    if not chunk:
        raise UserError(
            f"trainer.loss_chunk_tokens={chunk}: suite=memory measures with and without chunks; "
            "give the tokens of a chunk, or auto"
        )
    plain = {"loss_chunk_tokens": None, "checkpoint_activations": False}
    chunked, recomputed = {"loss_chunk_tokens": chunk}, {"checkpoint_activations": True}
    plan = step_plan(request).changed(plain)
    plans = {PEER: replace(plan, peer=True)} if request.suite.peers else {}
    plans |= {
        OURS: plan,
        f"{OURS}, chunked loss": plan.changed(chunked),
        f"{OURS}, activation checkpointing": plan.changed(recomputed),
        f"{OURS}, both": plan.changed(chunked | recomputed),
    }
    sides = {name: partial(measure_isolated, side) for name, side in plans.items()}
    measured = request.alternate(sides)
    losses = {name: figures["first_loss"] for name, [figures] in measured.items()}
    require_equal_losses(losses, OURS, tolerance=1e-4)
    rows = summarize(measured, reference=OURS)
    run = plan.run
    title = (
        f"{measured[OURS][0]['parameters']:,} parameters, vocabulary of {plan.vocab_size:,}, "
        f"{run.trainer.batch_size} x {run.model.block_size:,} tokens, {precision_of(run.trainer)}"
    )
    words = "{peak_mib[median]:,.0f} MiB, {milliseconds[median]:,.0f} ms"
    return Result(
        {title: rows},
        ["peak_mib", "rest_mib", "milliseconds"],
        f"rest: {PARTS['rest_mib']}; the peak also holds weights, gradients and optimizer state. "
        f"ms: median of {plan.rounds} steps. ratio: to {OURS}, which computes all logits at once "
        "and keeps all activations.",
        "Memory of a training step",
        [Bars(title, "MiB at the peak (lower is better); time of a step", rows, PARTS, words)],
    )
