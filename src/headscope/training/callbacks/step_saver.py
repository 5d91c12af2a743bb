"""Saves the weights at chosen steps, for a later analysis of how the heads developed."""

from collections.abc import Sequence
from pathlib import Path

from lightning.pytorch import LightningModule, Trainer

from headscope.training.callbacks.step_callback import StepCallback


class StepSaver(StepCallback):
    """Saves the weights in `folder` after each step in `steps`, for example as
    `step_000100.safetensors`.

    These checkpoints can be used for sampling, for analysis and as `init_from`. A run cannot be
    resumed from them, because they contain no optimizer state.
    """

    def __init__(self, *, folder: Path, steps: Sequence[int]) -> None:
        self.folder = folder
        self.steps = frozenset(steps)

    def due(self, step: int) -> bool:
        return step in self.steps

    def on_due_step(self, trainer: Trainer, pl_module: LightningModule) -> None:
        trainer.save_checkpoint(
            self.folder / f"step_{trainer.global_step:06}.safetensors", weights_only=True
        )
