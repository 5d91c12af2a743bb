"""Lets the Lightning module finish each optimizer step before other callbacks use the results of
the step."""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from headscope.training.module import LanguageModel


class EndOfStep(Callback):
    """Calls `LanguageModel.end_step` after every optimizer step.

    Lightning calls `on_train_batch_end` of all callbacks before `on_train_batch_end` of the module,
    so the module's own method would run too late. This callback must come before all callbacks that
    print, draw or save the results of a step.
    """

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if (batch_idx + 1) % trainer.accumulate_grad_batches == 0:
            assert isinstance(pl_module, LanguageModel)
            pl_module.end_step()
