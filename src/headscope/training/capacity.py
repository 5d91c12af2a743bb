"""Compares the estimated memory of a run with the memory of its device, before the run starts."""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from headscope.checkpoint.building import in_gib
from headscope.config.training import TrainConfig
from headscope.errors import UserError
from headscope.training.estimate import ERROR, Estimate

KEPT_BYTES = 2**30
"""Unless memory is scarce, the process keeps up to this much freed memory (`prepare_process`)."""


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

    def cannot_fit(self, estimate: Estimate) -> bool:
        """Whether the run does not fit even if it needs less than estimated."""
        return (1 - self.error) * estimate.peak > self.available

    def is_scarce(self, estimate: Estimate) -> bool:
        """Whether the process must return freed memory at once."""
        return estimate.peak + min(estimate.peak, KEPT_BYTES) > self.available

    def fewest_parts(self, config: TrainConfig) -> tuple[TrainConfig, Estimate]:
        """Splits the batches of `config` into the fewest equal parts that fit, or into the smallest
        parts if none fits. Returns the new configuration and its estimate."""
        size, before = config.trainer.batch_size, config.trainer.accumulate

        def split(parts: int) -> TrainConfig:
            return changed(config, batch_size=size // parts, accumulate=before * parts)

        def fits(parts: int) -> bool:
            return self.fits(self.estimated(split(parts)))

        shared = size // self.devices  # every device gets as much of every part
        possible = [parts for parts in range(1, shared + 1) if shared % parts == 0]
        # Smaller parts need less memory. So a binary search finds the first number that fits.
        first = bisect_left(possible, True, key=fits)
        found = split(possible[min(first, len(possible) - 1)])
        return found, self.estimated(found)

    def check(self, config: TrainConfig, estimate: Estimate) -> str | None:
        """Returns a warning if it is uncertain whether the run fits, or None if the run fits.

        Raises UserError with settings that fit if the run does not fit.
        """
        if self.fits(estimate):
            return None
        line = f"training needs about {readable(estimate.peak)} of memory"
        if not self.cannot_fit(estimate):
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
        new = config
        while True:
            following = [each for each in self.changes(new) if each[0] not in together]
            if not following:
                return "choose a smaller model, or a device with more memory"
            words, new = following[0]
            together.append(words)
            if self.fits(self.estimated(new)):
                return f"set {' '.join(together)}"

    def changes(self, config: TrainConfig) -> Iterator[tuple[str, TrainConfig]]:
        """Changes that save memory: the words of the command line, and the new configuration. The
        changes that cost least come first."""
        trainer, callbacks = config.trainer, config.callbacks
        if trainer.loss_chunk_tokens != "auto":
            yield "trainer.loss_chunk_tokens=auto", changed(config, loss_chunk_tokens="auto")
        if trainer.val_batch_size > 1:
            yield "trainer.val_batch_size=1", changed(config, val_batch_size=1)
        if callbacks.attention.steps or callbacks.attention.images or callbacks.heads.every_steps:
            without = replace(
                callbacks,
                attention=replace(callbacks.attention, steps=0, images=0),
                heads=replace(callbacks.heads, every_steps=0),
            )
            yield "callbacks=plain", replace(config, callbacks=without)
        if trainer.batch_size > self.devices and not self.fixed_batch:
            split, _ = self.fewest_parts(config)
            size, accumulate = split.trainer.batch_size, split.trainer.accumulate
            yield f"trainer.batch_size={size} trainer.accumulate={accumulate}", split
        if not trainer.checkpoint_activations:
            yield (
                "trainer.checkpoint_activations=true",
                changed(config, checkpoint_activations=True),
            )


def changed(config: TrainConfig, **trainer: Any) -> TrainConfig:
    """A copy of `config` with other values for keys of `trainer`."""
    return replace(config, trainer=replace(config.trainer, **trainer))


def readable(size: float) -> str:
    """A size in MiB or GiB."""
    return in_gib(size) if size >= 2**30 else f"{size / 2**20:,.0f} MiB"
