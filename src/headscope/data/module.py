"""The Lightning data module: a token store as batches for training and windows for validation."""

import math
from collections.abc import Iterable

from lightning.pytorch import LightningDataModule

from headscope.data.batches import Batch, TrainingBatches, ValidationWindows, prefetched
from headscope.data.store import TokenStore

VALIDATION_SHARE = 0.1
"""Validation between may cost this share of the training time."""

FORWARD_SHARE = 1 / 3
"""What a token costs when it is only predicted, as a share of what it costs to train on it."""

HELD_BYTES = 256 * 2**20
"""The largest corpus, as stored, that a GPU keeps a copy of."""


class TokenDataModule(LightningDataModule):
    """Batches for `Trainer.fit` and `Trainer.validate`.

    While it fits, validation sees each `validation_every`-th window; afterwards, all of them.
    `accumulate` batches make one optimizer step; training starts at the trainer's own step, so a
    resumed run needs no loader state. On a CPU a batch is one copy out of the mapped file. A GPU
    holds a corpus of up to `HELD_BYTES` itself; batches of a larger one are made ahead by another
    process. All ways give the same batches.

    Raises UserError when a split is too short.
    """

    def __init__(
        self,
        store: TokenStore,
        *,
        block_size: int,
        batch_size: int,
        accumulate: int,
        validation_batch_size: int,
        validation_every: int,
        seed: int,
    ) -> None:
        super().__init__()
        self.store = store
        self.block_size = block_size
        self.batch_size = batch_size
        self.accumulate = accumulate
        self.validation_batch_size = validation_batch_size
        self.validation_every = validation_every
        self.seed = seed
        # A text that is too short is told before anything is set up.
        TrainingBatches(store.train, block_size=block_size, batch_size=batch_size, seed=seed)
        ValidationWindows(store.validation, block_size=block_size, batch_size=1)

    def train_dataloader(self) -> Iterable[Batch]:
        assert self.trainer is not None
        device = self.trainer.strategy.root_device
        gpu = device.type == "cuda"
        held = gpu and self.store.train.nbytes <= HELD_BYTES
        batches = TrainingBatches(
            self.store.train,
            block_size=self.block_size,
            batch_size=self.batch_size,
            seed=self.seed,
            start=self.trainer.global_step * self.accumulate,
            rank=self.trainer.global_rank,
            world_size=self.trainer.world_size,
            device=device if held else None,
        )
        return prefetched(batches) if gpu and not held else batches

    def val_dataloader(self) -> ValidationWindows:
        assert self.trainer is not None
        return ValidationWindows(
            self.store.validation,
            block_size=self.block_size,
            batch_size=self.validation_batch_size,
            every=self.validation_every if self.trainer.state.fn == "fit" else 1,
            rank=self.trainer.global_rank,
            world_size=self.trainer.world_size,
        )


def validation_stride(*, validation_tokens: int, training_tokens: int) -> int:
    """Take each n-th validation window, so that a validation after every `training_tokens` costs at
    most a tenth of training; 1 means the whole split."""
    affordable = training_tokens * VALIDATION_SHARE / FORWARD_SHARE
    return max(1, math.ceil(validation_tokens / affordable))
