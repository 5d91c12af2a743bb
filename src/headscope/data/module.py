"""The Lightning data module: training and validation batches from a token store."""

import itertools
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

from lightning.pytorch import LightningDataModule

from headscope.data.batches import Batch, TrainingBatches, prefetched
from headscope.data.store import TokenStore
from headscope.data.windows import ValidationWindows
from headscope.errors import UserError

VALIDATION_SHARE = 0.1
"""Validation during training may take at most this fraction of the training time."""

FORWARD_SHARE = 1 / 3
"""The time of a forward pass divided by that of a training step with as many tokens."""

MAX_BYTES_ON_GPU = 256 * 2**20
"""If the training tokens need at most this number of bytes, they are copied to the GPU."""


class TokenDataModule(LightningDataModule):
    """Batches of the texts in `store` (see `prepare_store`) for `Trainer.fit` and `.validate`.

    A process trains on `accumulate` batches of `batch_size` sequences in each optimizer step.
    During `fit`, validation uses every `validation_every`-th window. `Trainer.validate` uses every
    `final_every`-th. `probe_text` is a text that shows what the heads do. The trainer's step gives
    the index of the first training batch, so a resumed run needs no state of the loader.

    On a CPU, batches are copied from the memory-mapped file. On a GPU, the tokens are kept in GPU
    memory if they need at most `MAX_BYTES_ON_GPU`. Otherwise, a worker process prefetches the
    batches. The batches are the same in all three cases.

    Raises UserError if the training or the validation split is too short.
    """

    def __init__(
        self,
        store: TokenStore,
        *,
        block_size: int,
        batch_size: int,
        accumulate: int = 1,
        validation_batch_size: int = 16,
        validation_every: int = 1,
        final_every: int = 1,
        seed: int = 1,
        probe_text: str | None = None,
    ) -> None:
        super().__init__()
        self.store = store
        self.probe_text = probe_text
        self.accumulate = accumulate
        self.tokens_per_batch = batch_size * block_size
        self.validation_every, self.final_every = validation_every, final_every
        self.train_batches = partial(
            TrainingBatches, store.train, block_size=block_size, batch_size=batch_size, seed=seed
        )
        sizes = {"block_size": block_size, "batch_size": validation_batch_size}
        self.validation_windows = partial(ValidationWindows, store.validation, **sizes)
        # If a split is too short, raise UserError now, before training is set up.
        self.train_batches()
        self.validation_windows()

    @property
    def tokens_per_step(self) -> int:
        """The tokens of an optimizer step of all processes."""
        assert self.trainer is not None
        return self.tokens_per_batch * self.accumulate * self.trainer.world_size

    def train_dataloader(self) -> "Steps":
        return Steps(self)

    def val_dataloader(self) -> ValidationWindows:
        assert self.trainer is not None
        return self.validation_windows(
            every=self.validation_every if self.trainer.state.fn == "fit" else self.final_every,
            rank=self.trainer.global_rank,
            world_size=self.trainer.world_size,
        )


class Steps:
    """The batches of each optimizer step, from the trainer's current step on. With the Trainer's
    `overfit_batches`, the first steps' batches are repeated."""

    def __init__(self, data: TokenDataModule) -> None:
        self.data = data

    def __iter__(self) -> Iterator[list[Batch]]:
        trainer: Any = self.data.trainer  # Lightning does not declare all attributes
        if trainer is None:
            raise UserError("give the Trainer the data module: fit(..., datamodule=...)")
        accumulate = self.data.accumulate
        repeated = int(trainer.overfit_batches)
        first = trainer.global_step % repeated if repeated else trainer.global_step
        device = trainer.strategy.root_device
        gpu = device.type == "cuda"
        fits_on_gpu = gpu and self.data.store.train.nbytes <= MAX_BYTES_ON_GPU
        batches = self.data.train_batches(
            start=first * accumulate,
            rank=trainer.global_rank,
            world_size=trainer.world_size,
            device=device if fits_on_gpu else None,
        )
        endless = iter(prefetched(batches) if gpu and not fits_on_gpu else batches)
        while True:
            yield list(itertools.islice(endless, accumulate))


def validation_stride(*, validation_tokens: int, training_tokens: int) -> int:
    """The smallest n such that validation on every n-th window, once per `training_tokens` tokens
    of training, takes at most `VALIDATION_SHARE` of the training time."""
    affordable = training_tokens * VALIDATION_SHARE / FORWARD_SHARE
    return max(1, math.ceil(validation_tokens / affordable))
