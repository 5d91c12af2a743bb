"""Early stopping that outlives a kill."""

from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping


class Patience(EarlyStopping):
    """Stops after `patience` validations without a new best loss.

    Lightning's own, but that a resumed run that had stopped stays stopped, and that a patience
    given anew holds.
    """

    def __init__(self, *, patience: int) -> None:
        super().__init__("val/loss", patience=patience, min_delta=0.0, verbose=False)

    @property
    def state_key(self) -> str:
        return "patience"

    @property
    def exhausted(self) -> bool:
        return self.wait_count >= self.patience

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.exhausted:
            trainer.should_stop = True

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict | {"patience": self.patience})
