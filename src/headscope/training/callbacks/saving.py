"""Checkpoints during training, and stopping by a signal without losing anything."""

import math
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from headscope import stop
from headscope.stop import Interrupted
from headscope.training.callbacks.clock import timer_paused
from headscope.training.callbacks.writers import tensorboard_writers
from headscope.training.checkpoints import copy_checkpoint
from headscope.training.module import LanguageModel


class CheckpointSaver(Callback):
    """Keeps `last.ckpt`, and `best.ckpt` of the lowest validation loss, in `folder`.

    `last` is written after every validation, in between when `minutes` have passed, and when a
    signal asks to stop: at the end of the current step, or after the current batch of a validation,
    which the resumed run then repeats. It comes last in the list of callbacks, so that everything
    that the others log and know of a step is in the file.

    From the end of the first step on, signals are deferred (`headscope.stop`); before, there is
    nothing to save. Raises `Interrupted` from the training loop after a signal.
    """

    def __init__(
        self,
        *,
        folder: Path,
        minutes: float,
        say: Callable[[str], None],
    ) -> None:
        self.folder = folder
        self.minutes = minutes
        self.say = say
        self.best_val_loss = math.inf
        self.validation_due = False
        self.saved_at = time.monotonic()
        self.deferring: ExitStack | None = None
        self.after_first: Callable[[], None] | None = None  # called once, after the first save

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        # Lightning skips a fit whose steps are all made, and so the validation that is due.
        self.max_steps = trainer.max_steps
        own = checkpoint["callbacks"].get(self.state_key, {})
        if own.get("validation_due") and checkpoint["global_step"] >= self.max_steps:
            trainer.fit_loop.epoch_loop.max_steps = checkpoint["global_step"] + 1

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.validation_due:
            trainer.fit_loop.epoch_loop.max_steps = self.max_steps
            validation = trainer.fit_loop.epoch_loop.val_loop
            validation.restarting = False  # from its first batch
            trainer.validating = True
            validation.run()
            trainer.training = True

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if (batch_idx + 1) % trainer.accumulate_grad_batches:
            return
        if self.deferring is None:
            self.deferring = ExitStack()
            self.deferring.enter_context(stop.defer_stop(self.say))
        if trainer.global_step >= trainer.max_steps:
            trainer.should_stop = True  # Lightning then validates, whatever the schedule says
        if trainer.should_stop or self._validates_now(trainer):
            return
        if stop.requested() or time.monotonic() - self.saved_at > 60 * self.minutes:
            assert isinstance(pl_module, LanguageModel)
            pl_module.require_finite(float(outputs["loss"]), "training")
            self._save(trainer)
        self._stop_if_requested()

    def on_validation_batch_end(self, trainer: Trainer, *args: Any) -> None:
        if trainer.state.fn == "fit" and stop.requested():
            self.validation_due = True
            self._save(trainer)
            self._stop_if_requested()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn != "fit":
            return
        self.validation_due = False
        loss = float(trainer.callback_metrics["val/loss"])
        better = loss < self.best_val_loss
        if better:
            self.best_val_loss = loss
        self._save(trainer, best=better)
        self._stop_if_requested()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._no_longer_defer()
        self._stop_if_requested()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self._no_longer_defer()

    def _no_longer_defer(self) -> None:
        if self.deferring:
            self.deferring.close()
            self.deferring = None

    def _stop_if_requested(self) -> None:
        number = stop.requested()
        if number:
            raise Interrupted(number)

    def _validates_now(self, trainer: Trainer) -> bool:
        """Whether this batch is followed by a validation, which saves by itself."""
        every = trainer.val_check_batch
        return every is not None and (trainer.fit_loop.epoch_loop.total_batch_idx + 1) % every == 0

    def _save(self, trainer: Trainer, *, best: bool = False) -> None:
        with timer_paused(trainer):
            for writer in tensorboard_writers(trainer):
                writer.flush()  # a resumed run does not log again what was logged before
            if best:
                # First: killed in between, a resumed run comes here again with the same weights.
                trainer.save_checkpoint(self.folder / "best.ckpt", weights_only=False)
                if trainer.is_global_zero:
                    copy_checkpoint(self.folder / "best.ckpt", self.folder / "last.ckpt")
            else:
                trainer.save_checkpoint(self.folder / "last.ckpt", weights_only=False)
        self.saved_at = time.monotonic()
        if self.after_first:
            self.after_first()
            self.after_first = None

    def state_dict(self) -> dict[str, Any]:
        return {"best_val_loss": self.best_val_loss, "validation_due": self.validation_due}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best_val_loss = state["best_val_loss"]
        self.validation_due = state["validation_due"]
