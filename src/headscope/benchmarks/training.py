"""What the machinery costs: our training step against the same step in a bare PyTorch loop, and
against the same model of others."""

import itertools
import math
import statistics
import tempfile
import time
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from headscope.benchmarks.bars import Bar, draw_bars
from headscope.benchmarks.limits import matrix_rate, training_flops
from headscope.benchmarks.peers import hugging_face
from headscope.benchmarks.timing import machine, place, ratios, spread, wait_for
from headscope.build import Run, build
from headscope.callbacks.clock import callbacks_of, clock_of, left_out
from headscope.config.training import TrainConfig
from headscope.data.batches import TrainingBatches
from headscope.nn import GPT
from headscope.nn.loss import next_token_loss
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
    model compiles all. `of_matrix_rate` is the part of what the device does in a large product of
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
        "of_matrix_rate": {name: round(flops * value / rate, 3) for name, value in speed.items()},
        "first_loss": {name: round(found[0], 6) for name, found in losses.items()},
        "last_loss": {name: round(found[-1], 6) for name, found in losses.items()},
    }


def built(config: TrainConfig, folder: str) -> Run:
    return build(config, folder=Path(folder), console=Console(quiet=True))


def bare_loop(
    config: TrainConfig, *, theirs: Callable[[GPT], nn.Module] | None = None
) -> "BareLoop":
    """The loop that does what `config` describes, with our model or what `theirs` makes of it,
    whose output has `logits`."""
    with tempfile.TemporaryDirectory() as folder:
        run = built(config, folder)
    device = run.trainer.strategy.root_device
    run.trainer.precision_plugin.convert_module(run.model)
    ours = run.model.to(device).train()
    if theirs is None:
        return BareLoop(run, ours, ours)
    model = theirs(ours)
    return BareLoop(run, model, lambda tokens: model(tokens).logits)


class BareLoop:
    """The plainest loop that does the work of a run: batches, forward, backward, clipping, a step
    of the optimizer at the schedule's rate."""

    def __init__(self, run: Run, model: nn.Module, logits: Callable[[Tensor], Tensor]) -> None:
        self.device = run.trainer.strategy.root_device
        self.model = model
        self.logits = logits
        self.optimizer = run.module.make_optimizer(self.model)
        self.rates = [group["lr"] for group in self.optimizer.param_groups]
        self.schedule = run.module.schedule
        self.clip = run.config.trainer.gradient_clip or math.inf
        self.precision = run.trainer.precision_plugin.forward_context
        self.steps = enumerate(
            TrainingBatches(
                run.store.train,
                block_size=run.config.model.block_size,
                batch_size=run.config.trainer.batch_size,
                seed=run.config.seed,
            )
        )
        self.losses: list[float] = []
        if run.module.compile_model:
            model.compile()

    def run(self, count: int) -> float:
        """Milliseconds of each of the next `count` steps."""
        wait_for(self.device)
        started = time.perf_counter()
        for step, (inputs, targets) in itertools.islice(self.steps, count):
            for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
                group["lr"] = rate * self.schedule(step)
            with self.precision():
                loss = next_token_loss(self.logits(inputs.to(self.device)), targets.to(self.device))
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            if step == 0:
                self.losses.append(float(loss.detach()))
        wait_for(self.device)
        passed = time.perf_counter() - started
        self.losses.append(float(loss.detach()))
        return 1e3 * passed / count


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
        with left_out(trainer):
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
            f"{100 * figures['of_matrix_rate'][name]:.1f} %",
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
