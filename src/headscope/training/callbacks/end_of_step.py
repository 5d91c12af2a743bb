"""What the module does at the end of an optimizer step, before any callback looks at it."""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from headscope.training.module import LanguageModel


class EndOfStep(Callback):
    """Calls `LanguageModel.end_step` after every optimizer step.

    Lightning calls the module's own hooks after those of all callbacks. `EndOfStep` stands before
    every callback that shows, draws or saves a step.
    """

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if (batch_idx + 1) % trainer.accumulate_grad_batches == 0:
            assert isinstance(pl_module, LanguageModel)
            pl_module.end_step()
