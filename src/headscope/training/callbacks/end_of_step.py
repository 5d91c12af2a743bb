"""Runs the end of an optimizer step in the module, before other callbacks use the step."""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from headscope.training.module import LanguageModel


class EndOfStep(Callback):
    """Calls `LanguageModel.end_step` after every optimizer step.

    Lightning calls a hook of the module after the same hook of all callbacks, which is too late.
    So this callback must come before every callback that prints, draws or saves a step.
    """

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if (batch_idx + 1) % trainer.accumulate_grad_batches == 0:
            assert isinstance(pl_module, LanguageModel)
            pl_module.end_step()
