"""What the machinery costs: our training step against the same step in a bare PyTorch loop."""

import itertools
import math
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from omegaconf import DictConfig
from rich.console import Console
from torch import nn

from headscope.build import build
from headscope.callbacks.clock import callbacks_of, clock_of
from headscope.data.batches import TrainingBatches
from headscope.nn.loss import next_token_loss


def compare_steps(
    config: DictConfig, *, rounds: int, steps: int, warmup_steps: int, console: Console
) -> dict[str, Any]:
    """Milliseconds per step of both sides, alternating: medians, spread, and the ratio.

    Both start from the same weights and see the same batches; the losses after the last step are
    returned, to show that both did the same work.
    """
    config = config.copy()
    config.trainer.max_steps = warmup_steps + steps
    config.trainer.compile = False
    config.trainer.accumulate = 1
    ours: list[float] = []
    bare: list[float] = []
    for number in range(rounds):
        our_ms, our_loss = our_step(config, warmup_steps)
        bare_ms, bare_loss = bare_step(config, warmup_steps)
        ours.append(our_ms)
        bare.append(bare_ms)
        console.print(
            f"round {number + 1}: ours {our_ms:.2f} ms, bare {bare_ms:.2f} ms, "
            f"ratio {our_ms / bare_ms:.3f}, last loss {our_loss:.5f} and {bare_loss:.5f}",
            highlight=False,
        )
    ratios = [a / b for a, b in zip(ours, bare, strict=True)]
    return {
        "ours_ms": spread(ours),
        "bare_ms": spread(bare),
        "ratio": spread(ratios),
        "rounds": rounds,
        "steps": steps,
        "last_loss": {"ours": our_loss, "bare": bare_loss},
    }


def our_step(config: DictConfig, warmup_steps: int) -> tuple[float, float]:
    """Milliseconds per step of a run as scripts/train.py makes it, and its last loss.

    As in `summary.json`, validation, samples, pictures and saving are left out.
    """
    with tempfile.TemporaryDirectory() as folder:
        this = build(config, folder=Path(folder), overrides=[], console=Console(quiet=True))
        stopwatch = _Stopwatch(warmup_steps)
        callbacks_of(this.trainer).append(stopwatch)
        this.trainer.fit(this.module, datamodule=this.data)
        seconds = clock_of(this.trainer).train_seconds - stopwatch.started
        return 1e3 * seconds / (config.trainer.max_steps - warmup_steps), stopwatch.last_loss


class _Stopwatch(Callback):
    def __init__(self, warmup_steps: int) -> None:
        self.warmup_steps = warmup_steps

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step == self.warmup_steps:
            self.started = clock_of(trainer).seconds()
        if trainer.global_step == trainer.max_steps:
            self.last_loss = float(outputs["loss"])


def bare_step(config: DictConfig, warmup_steps: int) -> tuple[float, float]:
    """Milliseconds per step of the plainest loop that does the same work, and its last loss."""
    with tempfile.TemporaryDirectory() as folder:
        this = build(config, folder=Path(folder), overrides=[], console=Console(quiet=True))
    device, plan = this.trainer.strategy.root_device, config.trainer
    model = this.model.to(device).train()
    optimizer = this.module.make_optimizer(model)
    rate = optimizer.param_groups[0]["lr"]
    batches = TrainingBatches(
        this.store.train,
        block_size=config.model.block_size,
        batch_size=plan.batch_size,
        seed=config.seed,
    )
    for step, (inputs, targets) in enumerate(itertools.islice(batches, plan.max_steps)):
        if step == warmup_steps:
            if device.type == "cuda":
                torch.cuda.synchronize()
            started = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = rate * this.module.schedule(step)
        with this.trainer.precision_plugin.forward_context():
            loss = next_token_loss(model(inputs.to(device)), targets.to(device))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), plan.gradient_clip or math.inf)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    if device.type == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    return 1e3 * seconds / (plan.max_steps - warmup_steps), float(loss.detach())


def spread(values: list[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(values), 4),
        "min": round(min(values), 4),
        "max": round(max(values), 4),
    }
