"""Checkpoints that are kept for good, to see later how the heads became what they are."""

from collections.abc import Sequence
from pathlib import Path

from lightning.pytorch import LightningModule, Trainer

from headscope.training.callbacks.watching import StepCallback


class SnapshotSaver(StepCallback):
    """Writes the weights after each of `steps` to `folder`, as `step_000100.ckpt`.

    Such a file is a checkpoint to sample from, to analyze or to start from (`init_from`); it has no
    optimizer to resume with.
    """

    def __init__(self, *, folder: Path, steps: Sequence[int]) -> None:
        self.folder = folder
        self.steps = frozenset(steps)

    def due(self, step: int) -> bool:
        return step in self.steps

    def act(self, trainer: Trainer, pl_module: LightningModule) -> None:
        trainer.save_checkpoint(
            self.folder / f"step_{trainer.global_step:06}.ckpt", weights_only=True
        )
