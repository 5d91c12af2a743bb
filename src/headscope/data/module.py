"""The Lightning data module: training and validation batches from a token store."""

import itertools
import math
from collections.abc import Iterable, Iterator
from functools import partial

from lightning.pytorch import LightningDataModule

from headscope.data.batches import Batch, TrainingBatches, ValidationWindows, prefetched
from headscope.data.store import TokenStore

VALIDATION_SHARE = 0.1
"""Validation during training may take at most this fraction of the training time."""

FORWARD_SHARE = 1 / 3
"""The time of a forward pass divided by the time of a training step (forward and backward pass),
for the same number of tokens."""

MAX_BYTES_ON_GPU = 256 * 2**20
"""If the training tokens need at most this number of bytes, they are copied to the GPU."""


class TokenDataModule(LightningDataModule):
    """Batches for `Trainer.fit` and `Trainer.validate`.

    During `fit`, validation uses every `validation_every`-th window. `Trainer.validate` uses every
    `final_every`-th. Each optimizer step uses `accumulate` batches. The index of the first training
    batch is computed from the trainer's current step, so a resumed run needs no saved state of the
    data loader.

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
        accumulate: int,
        validation_batch_size: int,
        validation_every: int,
        final_every: int,
        seed: int,
    ) -> None:
        super().__init__()
        self.accumulate = accumulate
        self.validation_every, self.final_every = validation_every, final_every
        self.train_tokens = store.train
        self.train_batches = partial(
            TrainingBatches, store.train, block_size=block_size, batch_size=batch_size, seed=seed
        )
        self.validation_windows = partial(
            ValidationWindows,
            store.validation,
            block_size=block_size,
            batch_size=validation_batch_size,
        )
        # If a split is too short, raise UserError now, before training is set up.
        self.train_batches()
        self.validation_windows()

    def train_dataloader(self) -> Iterable[list[Batch]]:
        assert self.trainer is not None
        device = self.trainer.strategy.root_device
        gpu = device.type == "cuda"
        fits_on_gpu = gpu and self.train_tokens.nbytes <= MAX_BYTES_ON_GPU
        batches = self.train_batches(
            start=self.trainer.global_step * self.accumulate,
            rank=self.trainer.global_rank,
            world_size=self.trainer.world_size,
            device=device if fits_on_gpu else None,
        )
        return steps_of(
            prefetched(batches) if gpu and not fits_on_gpu else batches, self.accumulate
        )

    def val_dataloader(self) -> ValidationWindows:
        assert self.trainer is not None
        return self.validation_windows(
            every=self.validation_every if self.trainer.state.fn == "fit" else self.final_every,
            rank=self.trainer.global_rank,
            world_size=self.trainer.world_size,
        )


def steps_of(batches: Iterable[Batch], accumulate: int) -> Iterator[list[Batch]]:
    """The batches of each optimizer step."""
    endless = iter(batches)
    while True:
        yield list(itertools.islice(endless, accumulate))


def validation_stride(*, validation_tokens: int, training_tokens: int) -> int:
    """The smallest n such that validation on every n-th window takes at most `VALIDATION_SHARE` of
    the training time. If n is 1, validation uses the whole split.

    There is one validation after every `training_tokens` tokens of training.
    """
    affordable = training_tokens * VALIDATION_SHARE / FORWARD_SHARE
    return max(1, math.ceil(validation_tokens / affordable))
