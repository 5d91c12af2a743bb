"""Early stopping that also works when a run is resumed."""

import math
from typing import Any

import torch
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

    def state_dict(self) -> dict[str, Any]:
        best = float(self.best_score)
        return {"wait_count": self.wait_count, "best": best if math.isfinite(best) else None}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.wait_count = state_dict["wait_count"]
        if state_dict["best"] is not None:
            self.best_score = torch.tensor(state_dict["best"])
