"""Compares the time of a training step of headscope and of a bare PyTorch loop."""

import itertools
import math
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn

from benchmarks import runner
from benchmarks.runner import Figures, Measured, Request, Result, seconds_of
from headscope.cli.bare_loop import bare_loop, milliseconds
from headscope.config.parse import Positive
from headscope.errors import UserError
from headscope.machine import keep_freed_memory
from headscope.nn import GPT
from headscope.training.module import LanguageModel

OURS, BARE = "headscope", "bare loop"


def measure(request: Request, rounds: Positive, steps: Positive, warmup_steps: Positive) -> Result:
    """Measures the milliseconds per step. In each round, both sides train for `steps` steps, on the
    same batches. Both start from the same weights. The time does not include validation, samples,
    pictures and saving.

    `mfu` is model FLOPs utilization (PaLM 2022): the FLOPs per second of the training, divided by
    the FLOPs per second of a large matrix product in the same precision. Raises RuntimeError when
    the sides have different losses in the first step.
    """
    config = deepcopy(request.run)
    if config.model.dropout:
        problem = f"model.dropout={config.model.dropout} draws different numbers on each side"
        raise UserError(f"{problem}, so losses cannot be compared: use model.dropout=0")
    # The last round needs one more step, because a round ends only when the next step begins.
    config.trainer.max_steps = warmup_steps + rounds * steps + 1
    config.trainer.accumulate = 1
    keep_freed_memory()
    bare = bare_loop(config)
    first_loss, *_ = [float(loss) for loss in itertools.islice(bare, warmup_steps)]
    turns = Turns(bare, steps, warmup_steps)
    run = runner.train_in_temporary_folder(config, turns)
    if not math.isclose(first_loss, turns.first_loss, rel_tol=1e-3):
        raise RuntimeError(f"{BARE} began at loss {first_loss}, not {turns.first_loss}")
    tokens, flops = (
        config.trainer.batch_size * config.model.block_size,
        training_flops(run.module.model),
    )
    with torch.no_grad(), run.trainer.precision_plugin.forward_context():
        rate = matrix_rate(run.trainer.strategy.root_device)
    rows = runner.summarize(turns.measured, ratio_of="milliseconds", reference=BARE)
    for row in rows:
        speed = 1e3 * tokens / row["milliseconds"]["median"]
        row |= {"tokens_per_second": round(speed), "mfu": round(flops * speed / rate, 3)}
    return Result(
        "Time of a training step",
        {f"{run.module.model.parameter_count():,} parameters, {tokens:,} tokens per step": rows},
        f"Median of {rounds} rounds of {steps} steps. Ratio: to the bare loop in the "
        "same round. MFU: model FLOPs utilization, relative to the measured rate of a large matrix "
        f"product, {rate / 1e9:,.0f} GFLOP/s.",
        "ms, x: ratio to the bare loop",
        "milliseconds",
    )


class Turns(Callback):
    """Pauses a run of headscope after every `steps` steps, and trains the bare loop for as many
    steps."""

    def __init__(self, bare: Iterator[Tensor], steps: int, warmup_steps: int) -> None:
        self.bare, self.steps, self.warmup_steps = bare, steps, warmup_steps
        self.measured: Measured = {}
        self.started = self.first_loss = 0.0

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, *args: Any
    ) -> None:
        done, steps = trainer.global_step - self.warmup_steps, self.steps
        if done < 0 or done % steps:
            return
        assert isinstance(pl_module, LanguageModel)
        timer = pl_module.timer
        if done:
            with timer.paused():
                ours = {"milliseconds": 1e3 * (timer.seconds() - self.started) / steps}
                sides: dict[str, Callable[[], Figures]] = {
                    OURS: lambda: ours,
                    BARE: lambda: {"milliseconds": milliseconds(self.bare, steps)},
                }
                self.measured = runner.alternate(sides, 1, self.measured)
        self.started = timer.seconds()

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
    return 2 * size**3 / min(seconds_of(lambda: a @ b) for _ in range(rounds))
