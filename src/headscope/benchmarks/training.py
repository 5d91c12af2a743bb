"""What the machinery costs: our training step against the same step in a bare PyTorch loop, and
against the same model of others."""

import math
import statistics
import tempfile
from copy import deepcopy
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from headscope.benchmarks.bars import Bar, draw_bars
from headscope.benchmarks.limits import matrix_rate, training_flops
from headscope.benchmarks.peers import hugging_face
from headscope.benchmarks.timing import machine, place, ratios, spread
from headscope.config.training import TrainConfig
from headscope.training.bare_loop import BareLoop, bare_loop, built
from headscope.training.callbacks.clock import callbacks_of, clock_of, timer_paused
from headscope.training.process import prepare_process

OURS, BARE, PEER = "headscope", "bare loop", "transformers"


def compare_steps(
    config: TrainConfig,
    *,
    rounds: int,
    steps: int,
    warmup_steps: int,
    peers: bool,
    console: Console,
) -> dict[str, Any]:
    """Milliseconds per step of a run as scripts/train.py makes it, of the plainest loop around the
    same model and optimizer, and with `peers` of such a loop around the same model of others, taken
    in turn, `steps` at a time: medians, spread, and ratios to the bare loop. What compiles our
    model compiles all. `mfu` is the part of what the device does in a large product of
    matrices in the same precision that the model's own arithmetic is ("MFU": PaLM 2022).

    All start from the same weights and see the same batches. As in `summary.json`, validation,
    samples, pictures and saving are left out. Raises RuntimeError when the losses show that they
    did not do the same work.
    """
    config = deepcopy(config)
    # One more: a round ends where the next step begins, with all that Lightning does in between.
    config.trainer.max_steps = warmup_steps + rounds * steps + 1
    config.trainer.accumulate = 1
    prepare_process()
    loops = {BARE: bare_loop(config)}
    if peers:
        loops[PEER] = bare_loop(config, theirs=hugging_face)
    turns = Turns(loops, warmup_steps=warmup_steps, steps=steps, console=console)
    with tempfile.TemporaryDirectory() as folder:
        run = built(config, folder)
        callbacks_of(run.trainer).append(turns)
        run.trainer.fit(run.module, datamodule=run.data)
    device = loops[BARE].device
    losses = turns.losses | {name: loop.losses for name, loop in loops.items()}
    for name, found in losses.items():
        # Our steps are logged as means; the first loss is of the same weights everywhere.
        if not math.isclose(found[0], losses[OURS][0], rel_tol=1e-3):
            raise RuntimeError(f"{name} began at loss {found[0]}, {OURS} at {losses[OURS][0]}")
    tokens = config.trainer.batch_size * config.model.block_size
    flops = training_flops(run.model)
    with torch.no_grad(), run.trainer.precision_plugin.forward_context():
        rate = matrix_rate(device)
    speed = {
        name: 1e3 * tokens / statistics.median(times) for name, times in turns.milliseconds.items()
    }
    return {
        **machine(device),
        "parameters": run.model.parameter_count(),
        "tokens_per_step": tokens,
        "rounds": rounds,
        "steps": steps,
        "milliseconds": {name: spread(times) for name, times in turns.milliseconds.items()},
        "ratio_to_bare_loop": {
            name: ratios(times, turns.milliseconds[BARE])
            for name, times in turns.milliseconds.items()
        },
        "tokens_per_second": {name: round(value) for name, value in speed.items()},
        "flops_per_token": flops,
        "matrix_flops_per_second": round(rate),
        "mfu": {name: round(flops * value / rate, 3) for name, value in speed.items()},
        "first_loss": {name: round(found[0], 6) for name, found in losses.items()},
        "last_loss": {name: round(found[-1], 6) for name, found in losses.items()},
    }


class Turns(Callback):
    """Lets the loops take their turn between `steps` of ours and the next, and times both."""

    def __init__(
        self, loops: dict[str, BareLoop], *, warmup_steps: int, steps: int, console: Console
    ) -> None:
        self.loops = loops
        self.warmup_steps = warmup_steps
        self.steps = steps
        self.console = console
        self.milliseconds: dict[str, list[float]] = {name: [] for name in (OURS, *loops)}
        self.losses: dict[str, list[float]] = {OURS: []}
        self.started = 0.0

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        done = trainer.global_step - self.warmup_steps
        if done < 0 or done % self.steps:
            return
        clock = clock_of(trainer)
        with timer_paused(trainer):
            if done == 0:
                for loop in self.loops.values():
                    loop.run(self.warmup_steps)
            else:
                ours = 1e3 * (clock.seconds() - self.started) / self.steps
                self.milliseconds[OURS].append(ours)
                for name, loop in self.loops.items():
                    self.milliseconds[name].append(loop.run(self.steps))
                told = (f"{name} {times[-1]:.2f} ms" for name, times in self.milliseconds.items())
                self.console.print(f"round {done // self.steps}: {', '.join(told)}")
            self.started = clock.seconds()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step in (1, trainer.max_steps - 1):
            self.losses[OURS].append(float(outputs["loss"]))


def report(figures: dict[str, Any], console: Console) -> None:
    """A row for each side."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("", no_wrap=True)
    for name in ("ms a step", "least", "most", "of bare loop", "tokens/s", "of matrix rate"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, times in figures["milliseconds"].items():
        table.add_row(
            name,
            *(f"{times[key]:.2f}" for key in ("median", "min", "max")),
            f"{figures['ratio_to_bare_loop'][name]['median']:.3f}",
            f"{figures['tokens_per_second'][name]:,}",
            f"{100 * figures['mfu'][name]:.1f} %",
        )
    console.print(table)
    console.print(
        "of bare loop: the median of the ratios, round by round. The matrix rate is that of a "
        f"large product here, {figures['matrix_flops_per_second'] / 1e9:,.0f} GFLOP/s.",
        highlight=False,
        soft_wrap=True,
    )


def draw(figures: dict[str, Any]) -> Figure:
    """A bar for each side."""
    bars = [
        Bar(
            name,
            times["median"],
            f"{times['median']:.2f} ms, {figures['ratio_to_bare_loop'][name]['median']:.3f}x",
            ours=name == OURS,
        )
        for name, times in figures["milliseconds"].items()
    ]
    name = f"{figures['parameters']:,} parameters, {figures['tokens_per_step']:,} tokens a step"
    return draw_bars(
        {name: bars},
        title=(
            f"Time of a training step, {place(figures)}\nMedians of {figures['rounds']} rounds of "
            f"{figures['steps']} steps, in turn; x: times the bare loop in the same round"
        ),
        axis="milliseconds (less is faster)",
        logarithmic=False,
    )
