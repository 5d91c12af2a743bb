"""Whether a run fits into the memory of its device, which settings would fit, and what a run needs
on other devices."""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from headscope.checkpoint.building import in_gib
from headscope.config.scripts import PlanConfig
from headscope.config.text import ByteConfig, Gpt2Config
from headscope.config.training import Precision, TrainConfig
from headscope.data.machine import available_memory
from headscope.errors import UserError
from headscope.training.check import check_settings
from headscope.training.flops import matrix_rate
from headscope.training.memory import Estimate, estimate

ERROR = 0.15  # largest relative error of the estimate (docs/performance.md)
COMPILED_ERROR = 0.4  # a compiled model may need less: it recomputes some activations
KEPT_BYTES = 2**30  # the most freed memory that a process keeps (`prepare_process`)


@dataclass(frozen=True)
class Capacity:
    """Compares runs with a device that has `available` bytes of free memory.

    `estimated` returns the estimate for a configuration. A batch is split over `devices`. `error`
    is the largest share by which a run may need less than estimated. If `fixed_batch` is true, the
    batches of the run cannot change, because it continues from a checkpoint.
    """

    available: float
    estimated: Callable[[TrainConfig], Estimate]
    devices: int = 1
    error: float = ERROR
    fixed_batch: bool = False

    def fits(self, estimate: Estimate) -> bool:
        """Whether the run fits even if it needs more than estimated."""
        return (1 + ERROR) * estimate.peak <= self.available

    def is_scarce(self, estimate: Estimate) -> bool:
        """Whether the process must return freed memory at once."""
        return estimate.peak + min(estimate.peak, KEPT_BYTES) > self.available

    def fewest_parts(self, config: TrainConfig) -> TrainConfig:
        """Splits the batches of `config` into the fewest equal parts that fit, or into the smallest
        parts if none fits. If `trainer.accumulate` is `auto`, each batch is one part before."""
        trainer = config.trainer
        before = 1 if trainer.accumulate == "auto" else trainer.accumulate
        shared = trainer.batch_size // self.devices  # every device gets as much of every part
        possible = [
            changed(config, batch_size=trainer.batch_size // parts, accumulate=before * parts)
            for parts in range(1, shared + 1)
            if shared % parts == 0
        ]
        # Smaller parts need less memory. So a binary search finds the first number that fits.
        first = bisect_left(possible, True, key=lambda split: self.fits(self.estimated(split)))
        return possible[min(first, len(possible) - 1)]

    def check(self, config: TrainConfig, needed: Estimate) -> str | None:
        """Returns a warning if it is uncertain whether the run fits, or None if the run fits.
        `needed` is the estimate for `config`.

        Raises UserError with settings that fit if the run does not fit.
        """
        if self.fits(needed):
            return None
        line = f"training needs about {readable(needed.peak)} of memory"
        if (1 - self.error) * needed.peak <= self.available:
            return f"{line}, and {readable(self.available)} are available: it may run out of memory"
        raise UserError(
            f"{line}, but only {readable(self.available)} are available: {self.advice(config)}"
        )

    def advice(self, config: TrainConfig) -> str:
        """Changes of the configuration after which the run fits."""
        alone = [words for words, new in self.changes(config) if self.fits(self.estimated(new))]
        if alone:
            return f"set {' or '.join(alone)}"
        together: list[str] = []
        while following := [each for each in self.changes(config) if each[0] not in together]:
            words, config = following[0]
            together.append(words)
            if self.fits(self.estimated(config)):
                return f"set {' '.join(together)}"
        return "choose a smaller model, or a device with more memory"

    def changes(self, config: TrainConfig) -> Iterator[tuple[str, TrainConfig]]:
        """Changes that save memory: the words of the command line, and the new configuration. The
        changes that cost least come first."""
        trainer, callbacks = config.trainer, config.callbacks
        attention, heads = callbacks.attention, callbacks.heads
        if trainer.loss_chunk_tokens != "auto":
            yield "trainer.loss_chunk_tokens=auto", changed(config, loss_chunk_tokens="auto")
        if trainer.val_batch_size > 1:
            yield "trainer.val_batch_size=1", changed(config, val_batch_size=1)
        if attention.steps or attention.images or heads.every_steps:
            off = replace(attention, steps=0, images=0), replace(heads, every_steps=0)
            without = replace(callbacks, attention=off[0], heads=off[1])
            yield "callbacks=plain", replace(config, callbacks=without)
        if trainer.batch_size > self.devices and not self.fixed_batch:
            split = self.fewest_parts(config)
            size, accumulate = split.trainer.batch_size, split.trainer.accumulate
            yield f"trainer.batch_size={size} trainer.accumulate={accumulate}", split
        if not trainer.checkpoint_activations:
            words = "trainer.checkpoint_activations=true"
            yield words, changed(config, checkpoint_activations=True)


def changed(config: TrainConfig, **trainer: Any) -> TrainConfig:
    """A copy of `config` with other values for keys of `trainer`."""
    return replace(config, trainer=replace(config.trainer, **trainer))


def readable(size: float) -> str:
    """A size in MiB or GiB."""
    return in_gib(size) if size >= 2**30 else f"{size / 2**20:,.0f} MiB"


def plan(config: TrainConfig, planned: PlanConfig, precision: Precision) -> dict[str, Any]:
    """What the run that `config` describes needs on the devices that `planned` describes.
    `precision` is that of a run on this machine. Keys whose meaning is not in their name:

    - `batch_size`, `accumulate`: `trainer.accumulate=auto` is replaced by a number.
    - `memory_gib`: the parts of the memory of one device. `peaks_gib`: the memory at the times that
      decide the peak (`headscope.training.memory.trace`).
    - `flops`: of the whole run.
    - `sent_gb_per_step`: what one device sends in an optimizer step.
    - `checkpoint_gb`, `text_gb`: the size on disk of a checkpoint and of the training tokens.

    Raises UserError if a value is out of range.
    """
    devices = planned.devices
    for key in ("tokens", "gpu_gib", "tflops", "mfu"):
        value = getattr(planned, key)
        if value is not None and not 0 < value < math.inf:
            raise UserError(f"estimate.{key}={value} must be above 0")
    check_settings(config, devices)
    vocabularies: dict[type, int] = {ByteConfig: 257, Gpt2Config: 50_257}
    vocab_size = planned.vocab_size or getattr(
        config.tokenizer, "vocab_size", vocabularies.get(type(config.tokenizer))
    )
    if vocab_size is None:
        raise UserError(
            "estimate.vocab_size=null: the vocabulary of this tokenizer depends on the text; give "
            "its size"
        )
    gpu_memory = None if planned.gpu_gib is None else int(planned.gpu_gib * 2**30)
    if gpu_memory and config.trainer.precision == "auto":
        precision = "bf16-mixed"
    estimated = partial(
        estimate,
        vocab_size=vocab_size,
        precision=precision,
        gpu_memory=gpu_memory,
        devices=devices,
        strategy=planned.strategy,
        traces={},
    )
    capacity = Capacity(gpu_memory or available_memory(), estimated, devices)
    if config.trainer.accumulate == "auto":
        config = capacity.fewest_parts(config)
    trainer, needed = config.trainer, capacity.estimated(config)
    tokens_per_step = trainer.batch_size * trainer.batches_per_step * config.model.block_size
    steps = trainer.max_steps
    if planned.tokens is not None:
        steps = math.ceil(planned.tokens / tokens_per_step)
    rate = matrix_rate(torch.device("cpu")) if planned.tflops is None else 1e12 * planned.tflops
    seconds = needed.seconds(steps, rate=rate, devices=devices, mfu=planned.mfu)
    sharded = devices > 1 and planned.strategy == "fsdp"
    # A device does not send its own part. FSDP gathers the weights twice for each batch, and
    # reduces the gradients once. DDP reduces the gradients once for each step, and sends the sums
    # to all devices.
    times = 3 * trainer.batches_per_step if sharded else 2
    sent = (devices - 1) / devices * needed.weights * times
    state = needed.optimizer * (devices if sharded else 1)
    parts = ("parameters", "gradients", "optimizer", "activations")
    return {
        "parameters": round(needed.weights / (2 if precision == "bf16-true" else 4)),
        "precision": precision,
        "batch_size": trainer.batch_size,
        "accumulate": trainer.accumulate,
        "tokens_per_step": tokens_per_step,
        "steps": steps,
        "tokens": steps * tokens_per_step,
        "memory_gib": {part: gib(getattr(needed, part)) for part in parts},
        "peaks_gib": {time: gib(size) for time, size in needed.peaks.items()},
        "peak_gib": gib(needed.peak),
        "available_gib": gib(capacity.available),
        "fits": capacity.fits(needed),
        "flops": steps * needed.step_flops,
        "seconds_per_step": float(f"{seconds / steps:.4g}"),
        "hours": float(f"{seconds / 3600:.4g}"),
        "sent_gb_per_step": round(sent / 1e9, 3),
        "checkpoint_gb": round((needed.weights + state) / 1e9, 3),
        "text_gb": round(steps * tokens_per_step * (2 if vocab_size <= 2**16 else 4) / 1e9, 3),
    }


def gib(size: float) -> float:
    return round(size / 2**30, 3)
