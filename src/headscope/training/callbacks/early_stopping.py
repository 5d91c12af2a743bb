"""Early stopping that also works when a run is resumed."""

import math
from typing import Annotated, Any

import torch
from lightning.pytorch import callbacks


class EarlyStopping(callbacks.EarlyStopping):
    """Stops training after `patience` validations without a new best loss, or never if it is None.

    Unlike with Lightning's, `patience` can change when a run is resumed, and a run without
    validation is no error."""

    def __init__(self, *, patience: Annotated[int, 1] | None = None) -> None:
        endless = 10**9 if patience is None else patience
        super().__init__("val/loss", patience=endless, min_delta=0.0, verbose=False, strict=False)

    @property
    def state_key(self) -> str:
        return "EarlyStopping of headscope"

    def state_dict(self) -> dict[str, Any]:
        best = float(self.best_score)
        return {"wait_count": self.wait_count, "best": best if math.isfinite(best) else None}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.wait_count = int(state_dict["wait_count"])
        best = state_dict["best"]
        self.best_score = torch.tensor(math.inf if best is None else float(best))
