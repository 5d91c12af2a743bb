"""Early stopping that also works when a run is resumed."""

from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping


class ResumableEarlyStopping(EarlyStopping):
    """Stops training after `patience` validations without a new best loss.

    This class differs from Lightning's `EarlyStopping` in two ways. First, a run that stopped early
    stops again when it is resumed. Second, a new value of `patience` replaces the value in the
    checkpoint.
    """

    def __init__(self, *, patience: int) -> None:
        super().__init__("val/loss", patience=patience, min_delta=0.0, verbose=False)

    @property
    def state_key(self) -> str:
        return "patience"

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.wait_count >= self.patience:
            trainer.should_stop = True

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict | {"patience": self.patience})
