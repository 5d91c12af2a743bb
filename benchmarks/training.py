"""Compares the time of a training step of headscope and of a bare PyTorch loop: on a quiet machine,
and with endless loops in other processes."""

import math
import statistics
import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn

from benchmarks import runner
from benchmarks.runner import Figures, Measured, Request, Result, seconds_of
from headscope.cli.bare_loop import BareLoop
from headscope.data.machine import keep_freed_memory
from headscope.errors import UserError
from headscope.nn import GPT
from headscope.training.module import LanguageModel

OURS, BARE = "headscope", "bare loop"

ENDLESS = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"
"""A program that uses a core until the benchmark ends."""


def measure(request: Request) -> Result:
    """Measures the milliseconds per step. In each round, both sides train for `suite.steps` steps,
    first alone, then with 1, ..., `suite.busy_loops` endless loops in other processes. Both
    start from the same weights and train on the same batches. The time does not include validation,
    samples, pictures and saving.

    `mfu` is model FLOPs utilization (PaLM 2022): the FLOPs per second of the training, divided by
    the FLOPs per second of a large matrix product in the same precision. Raises RuntimeError when
    the sides have different losses in the first step.
    """
    config, plan = deepcopy(request.run), request.suite
    if config.model.dropout:
        raise UserError(
            f"model.dropout={config.model.dropout} draws different numbers on each side, so losses "
            "could not show that the work is the same: suite=training takes model.dropout=0"
        )
    # The last round needs one more step, because a round ends only when the next step begins.
    loads = range(1 + (plan.busy_loops or 0))
    config.trainer.max_steps = plan.warmup_steps + len(loads) * plan.rounds * plan.steps + 1
    config.trainer.accumulate = 1
    keep_freed_memory()
    bare = BareLoop(config)
    bare.run(plan.warmup_steps)
    turns = Turns(plan, bare, loads)
    try:
        run = runner.train_in_temporary_folder(config, turns)
    finally:
        turns.end_loops()
    if not math.isclose(bare.losses[0], turns.first_loss, rel_tol=1e-3):
        raise RuntimeError(f"{BARE} began at loss {bare.losses[0]}, not {turns.first_loss}")
    tokens, flops = config.trainer.batch_size * config.model.block_size, training_flops(run.model)
    with torch.no_grad(), run.trainer.precision_plugin.forward_context():
        rate = matrix_rate(bare.device)
    groups = {}
    for load, measured in zip(loads, turns.measured, strict=True):
        rows = runner.summarize(measured, ratio_of="milliseconds", reference=BARE)
        for row in rows:
            speed = 1e3 * tokens / row["milliseconds"]["median"]
            row |= {"tokens_per_second": round(speed), "mfu": round(flops * speed / rate, 3)}
            pairs = zip(measured[row["side"]], turns.measured[0][row["side"]], strict=True)
            times = [busy["milliseconds"] / quiet["milliseconds"] for busy, quiet in pairs]
            row |= {"times_quiet": round(statistics.median(times), 2)} if load else {}
        title = f"{run.model.parameter_count():,} parameters, {tokens:,} tokens per step"
        beside = ["", ", beside an endless loop", f", beside {load} endless loops"][min(load, 2)]
        groups[title + beside] = rows
    return Result(
        "Time of a training step",
        groups,
        f"Median of {plan.rounds} rounds of {plan.steps} steps. Ratio: to the bare loop in the "
        "same round. MFU: model FLOPs utilization, relative to the measured rate of a large matrix "
        f"product, {rate / 1e9:,.0f} GFLOP/s. Times quiet: to the same side without loops.",
        "ms, x: ratio to the bare loop",
        "milliseconds",
    )


class Turns(Callback):
    """Pauses a run of headscope after every `suite.steps` steps, and trains the bare loop for as
    many steps. `loads` are the numbers of endless programs, which take turns. `measured` has an
    entry for each of them."""

    def __init__(self, plan: Any, bare: BareLoop, loads: range) -> None:
        self.plan, self.bare = plan, bare
        self.measured: list[Measured] = [{} for _ in loads]
        self.endless: list[subprocess.Popen[bytes]] = []
        self.started = self.first_loss = 0.0

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, *args: Any
    ) -> None:
        done, steps = trainer.global_step - self.plan.warmup_steps, self.plan.steps
        if done < 0 or done % steps:
            return
        assert isinstance(pl_module, LanguageModel)
        timer = pl_module.timer
        if done:
            with timer.paused():
                ours = {"milliseconds": 1e3 * (timer.seconds() - self.started) / steps}
                sides: dict[str, Callable[[], Figures]] = {
                    OURS: lambda: ours,
                    BARE: lambda: {"milliseconds": self.bare.run(steps)},
                }
                load = (done // steps - 1) % len(self.measured)
                self.measured[load] = runner.alternate(sides, 1, self.measured[load])
        self.end_loops()
        for _ in range(done // steps % len(self.measured)):
            self.endless.append(subprocess.Popen([sys.executable, "-c", ENDLESS]))
        self.started = timer.seconds()

    def end_loops(self) -> None:
        while self.endless:
            endless = self.endless.pop()
            endless.kill()
            endless.wait()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, *args: Any
    ) -> None:
        if trainer.global_step == 1:
            self.first_loss = float(outputs["loss"])


def training_flops(model: GPT) -> int:
    """FLOPs of a training step per token (PaLM 2022, appendix B): 6 for each weight of a linear
    layer, and 12 T for each dimension of each head, where T is `block_size`.

    Masked positions in causal attention count like all others. Embeddings do not count, because
    they are only looked up. A formula, because PyTorch's FlopCounterMode does not count fused
    attention on a CPU.
    """
    weights = sum(part.weight.numel() for part in model.modules() if isinstance(part, nn.Linear))
    widths = sum(part.heads * part.head_dim for part in model.attentions)
    return 6 * weights + 12 * widths * model.block_size


def matrix_rate(device: torch.device, *, size: int | None = None, rounds: int = 10) -> float:
    """FLOPs per second of a product of two large square matrices, the best of `rounds`. If autocast
    is on, the matrices have the dtype of autocast. Does not use the global random numbers.

    `size` is the number of rows, by default large enough to reach the highest rate.
    """
    size = size or (1024 if device.type == "cpu" else 8192)
    generator = torch.Generator(device).manual_seed(0)
    a, b = (torch.randn(size, size, device=device, generator=generator) for _ in "ab")
    if torch.is_autocast_enabled(device.type):
        a, b = (part.to(torch.get_autocast_dtype(device.type)) for part in (a, b))
    return 2 * size**3 / min(seconds_of(lambda: a @ b, device) for _ in range(rounds))
