"""Looking at the model while it trains, at steps of one's own choice."""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils.tensorboard import SummaryWriter

from headscope.callbacks.clock import left_out
from headscope.callbacks.writers import tensorboard_writers
from headscope.nn import GPT


class Watcher(Callback):
    """Calls `look` at every step that is `due`: before the first, after others, and once more where
    a run is stopped early. What happens there is not training time, and must not change the model
    or draw from the global random numbers: the training never learns of it.
    """

    def due(self, step: int) -> bool:
        """Whether to look at this step, 0 for the untrained model."""
        raise NotImplementedError

    def look(self, model: GPT, step: int, writers: list[SummaryWriter]) -> None:
        """Log what `model` is like after `step` steps."""
        raise NotImplementedError

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.global_step == 0 and self.due(0):
            self._look(trainer, pl_module)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        stepped = (batch_idx + 1) % trainer.accumulate_grad_batches == 0
        if stepped and self.due(trainer.global_step):
            self._look(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        stopped_early = trainer.global_step < trainer.max_steps
        if stopped_early and not self.due(trainer.global_step):
            self._look(trainer, pl_module)

    def _look(self, trainer: Trainer, pl_module: LightningModule) -> None:
        writers = tensorboard_writers(trainer)
        if writers:
            assert isinstance(pl_module.model, GPT)
            with left_out(trainer):
                self.look(pl_module.model, trainer.global_step, writers)


def image_steps(images: int, max_steps: int) -> list[int]:
    """At most `images` steps from 0 to `max_steps`, both included, spread evenly in log time.

    TensorBoard keeps ten images a tag unless told otherwise.
    """
    if images < 2:
        return [max_steps][:images]
    ratio = max_steps ** (1 / (images - 2)) if images > 2 else 1
    middle = {round(ratio**power) for power in range(images - 2)}
    return sorted({0, max_steps} | middle)
