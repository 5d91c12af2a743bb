"""What the framework costs: our training step, the same step in a bare PyTorch loop, and the same
model of transformers."""

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from headscope.benchmarks.roofline import matrix_rate, training_flops
from headscope.benchmarks.runner import (
    Figures,
    Measured,
    Request,
    Result,
    require_equal_losses,
    summarize,
    trained,
)
from headscope.benchmarks.show import Bars
from headscope.benchmarks.transformers import gpt2_of
from headscope.errors import UserError
from headscope.training.bare_loop import BareLoop, bare_loop
from headscope.training.callbacks.clock import clock_of, timer_paused
from headscope.training.process import prepare_process

OURS, BARE, PEER = "headscope", "bare loop", "transformers"


def measure(request: Request) -> Result:
    """Milliseconds per step, `suite.steps` at a time. All sides start from the same weights and see
    the same batches; validation, samples, pictures and saving are not timed.

    `mfu` is model FLOPs utilization (PaLM 2022), relative to the rate of a large matrix product in
    the same precision. Raises RuntimeError when the first losses differ.
    """
    config, plan = deepcopy(request.run), request.suite
    if config.model.dropout:
        raise UserError(
            f"model.dropout={config.model.dropout} draws different numbers on each side, so losses "
            "could not show that the work is the same: suite=training takes model.dropout=0"
        )
    # One more: a round ends where the next step begins, after all that Lightning does in between.
    config.trainer.max_steps = plan.warmup_steps + plan.rounds * plan.steps + 1
    config.trainer.accumulate = 1
    prepare_process()
    loops = {BARE: bare_loop(config)}
    if plan.peers:
        loops[PEER] = bare_loop(config, theirs=gpt2_of)
    turns = Turns(request, loops)
    run = trained(config, turns)
    losses = {OURS: turns.losses, **{name: loop.losses for name, loop in loops.items()}}
    firsts = {name: found[0] for name, found in losses.items()}
    require_equal_losses(firsts, OURS, tolerance=1e-3)
    tokens, flops = config.trainer.batch_size * config.model.block_size, training_flops(run.model)
    with torch.no_grad(), run.trainer.precision_plugin.forward_context():
        rate = matrix_rate(loops[BARE].device)
    rows = summarize(turns.measured, reference=BARE)
    for row in rows:
        speed = 1e3 * tokens / row["milliseconds"]["median"]
        row |= {"tokens_per_second": round(speed), "mfu": round(flops * speed / rate, 3)}
        row |= {"first_loss": losses[row["side"]][0], "last_loss": losses[row["side"]][-1]}
    title = f"{run.model.parameter_count():,} parameters, {tokens:,} tokens per step"
    words = "{milliseconds[median]:.2f} ms, ratio {milliseconds[ratio][median]:.3f}"
    return Result(
        {title: rows},
        ["milliseconds", "tokens_per_second", "mfu"],
        "ratio: to the bare loop in the same round, median. mfu: part of the rate of a large "
        f"matrix product, {rate / 1e9:,.0f} GFLOP/s.",
        f"Time of a training step, medians of {plan.rounds} rounds of {plan.steps} steps\n"
        "ratio: to the bare loop in the same round",
        [Bars(title, "ms (lower is faster)", rows, {"milliseconds": "step"}, words, [OURS])],
        figures={"matrix_flops_per_second": round(rate), "tokens_per_step": tokens},
    )


class Turns(Callback):
    """Runs the other loops after every `suite.steps` steps of ours, and times both."""

    def __init__(self, request: Request, loops: dict[str, BareLoop]) -> None:
        self.request, self.plan, self.loops = request, request.suite, loops
        self.measured: Measured = {}
        self.losses: list[float] = []
        self.started = 0.0

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        done, steps = trainer.global_step - self.plan.warmup_steps, self.plan.steps
        if done < 0 or done % steps:
            return
        clock = clock_of(trainer)
        with timer_paused(trainer):
            if done:
                ours = {"milliseconds": 1e3 * (clock.seconds() - self.started) / steps}
                sides: dict[str, Callable[[], Figures]] = {OURS: lambda: ours}
                sides |= {name: partial(run_loop, loop, steps) for name, loop in self.loops.items()}
                label = f"round {done // steps} of {self.plan.rounds}"
                self.request.take_turns(sides, self.measured, label=label)
            else:
                for loop in self.loops.values():
                    loop.run(self.plan.warmup_steps)
            self.started = clock.seconds()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step in (1, trainer.max_steps - 1):
            self.losses.append(float(outputs["loss"]))


def run_loop(loop: BareLoop, steps: int) -> Figures:
    return {"milliseconds": loop.run(steps)}
