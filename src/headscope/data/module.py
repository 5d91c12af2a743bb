"""The Lightning data module: a token store as batches for training and windows for validation."""

from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader

from headscope.data.batches import Batch, TrainingBatches, ValidationWindows
from headscope.data.store import TokenStore

VALIDATION_SHARE = 0.1
"""Validation between may cost this share of the training time."""

FORWARD_SHARE = 1 / 3
"""What a token costs when it is only predicted, as a share of what it costs to train on it."""


class TokenDataModule(LightningDataModule):
    """Batches for `Trainer.fit` and `Trainer.validate`.

    While it fits, validation sees each `validation_every`-th window; afterwards, all of them.
    `accumulate` batches make one optimizer step; training starts at the trainer's own step, so a
    resumed run needs no loader state.

    Raises ValueError when a split is too short.
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

    def train_dataloader(self) -> DataLoader[Batch]:
        assert self.trainer is not None
        batches = TrainingBatches(
            self.store.train,
            block_size=self.block_size,
            batch_size=self.batch_size,
            seed=self.seed,
            start=self.trainer.global_step * self.accumulate,
            rank=self.trainer.global_rank,
            world_size=self.trainer.world_size,
        )
        return DataLoader(batches, batch_size=None, pin_memory=self._pin())

    def val_dataloader(self) -> DataLoader[Batch]:
        assert self.trainer is not None
        windows = ValidationWindows(
            self.store.validation,
            block_size=self.block_size,
            batch_size=self.validation_batch_size,
            every=self.validation_every if self.trainer.state.fn == "fit" else 1,
            rank=self.trainer.global_rank,
            world_size=self.trainer.world_size,
        )
        return DataLoader(windows, batch_size=None, pin_memory=self._pin())

    def _pin(self) -> bool:
        assert self.trainer is not None
        return self.trainer.strategy.root_device.type == "cuda"


def validation_stride(*, validation_tokens: int, training_tokens: int, validations: int) -> int:
    """Take each n-th validation window so that all `validations` of a run cost at most a tenth of
    its training; 1 means the whole split."""
    affordable = training_tokens * VALIDATION_SHARE / FORWARD_SHARE
    wanted = validation_tokens * max(validations, 1)
    return max(1, -int(-wanted // affordable))
