"""The Lightning data module: training and validation batches from a token store."""

import math
from collections.abc import Iterable

from lightning.pytorch import LightningDataModule

from headscope.data.batches import Batch, TrainingBatches, ValidationWindows, prefetched
from headscope.data.store import TokenStore

VALIDATION_SHARE = 0.1
"""Validation during training may take at most this fraction of the training time."""

FORWARD_SHARE = 1 / 3
"""Cost of a forward pass relative to a training step (forward and backward), per token."""

MAX_BYTES_ON_GPU = 256 * 2**20
"""Training tokens up to this size are copied to the GPU."""


class TokenDataModule(LightningDataModule):
    """Batches for `Trainer.fit` and `Trainer.validate`.

    During `fit`, validation uses every `validation_every`-th window; `Trainer.validate` uses all.
    `accumulate` batches make one optimizer step. The first batch follows from the trainer's current
    step, so a resumed run needs no saved loader state.

    On a CPU, batches are copied from the memory-mapped file. On a GPU, up to `MAX_BYTES_ON_GPU` of
    tokens are kept in GPU memory; for more, a worker process prefetches the batches. All three ways
    give the same batches.

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
        # Fail now, before training is set up, if a split is too short.
        TrainingBatches(store.train, block_size=block_size, batch_size=batch_size, seed=seed)
        ValidationWindows(store.validation, block_size=block_size, batch_size=1)

    def train_dataloader(self) -> Iterable[Batch]:
        assert self.trainer is not None
        device = self.trainer.strategy.root_device
        gpu = device.type == "cuda"
        fits_on_gpu = gpu and self.store.train.nbytes <= MAX_BYTES_ON_GPU
        batches = TrainingBatches(
            self.store.train,
            block_size=self.block_size,
            batch_size=self.batch_size,
            seed=self.seed,
            start=self.trainer.global_step * self.accumulate,
            rank=self.trainer.global_rank,
            world_size=self.trainer.world_size,
            device=device if fits_on_gpu else None,
        )
        return prefetched(batches) if gpu and not fits_on_gpu else batches

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
    """The n for which validating on every n-th window, after every `training_tokens`, takes at most
    `VALIDATION_SHARE` of the training time. 1 means the whole split."""
    affordable = training_tokens * VALIDATION_SHARE / FORWARD_SHARE
    return max(1, math.ceil(validation_tokens / affordable))
