"""Checkpoints while it trains, and a Ctrl-C that loses nothing."""

import math
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from headscope.callbacks.clock import left_out
from headscope.callbacks.writers import tensorboard_writers
from headscope.training.checkpoints import copy_checkpoint
from headscope.training.module import LanguageModel


class Interrupted(Exception):
    """Ctrl-C was pressed; the step under way was finished and saved."""


class Saving(Callback):
    """Keeps `last.ckpt`, and `best.ckpt` of the lowest validation loss, in `folder`.

    `last` is written after every validation, and in between when `minutes` have passed; at the
    end, and on Ctrl-C after the step under way. It comes last in the list of callbacks, so that
    what the others know of a validation is in the file.

    Raises `Interrupted` from the training loop after a Ctrl-C. A second one ends the process at
    once; the checkpoint before it stays whole.
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
        self.saved_at = time.monotonic()
        self.interrupted = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.handler = signal.signal(signal.SIGINT, self._interrupt)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        signal.signal(signal.SIGINT, self.handler)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        signal.signal(signal.SIGINT, self.handler)  # Lightning then calls no teardown

    def _interrupt(self, signum: int, frame: FrameType | None) -> None:
        if self.interrupted:
            os._exit(130)
        self.interrupted = True
        self.say("Finishing the step under way, then saving. Ctrl-C again ends it at once.")

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if (batch_idx + 1) % trainer.accumulate_grad_batches:
            return
        if trainer.global_step >= trainer.max_steps:
            trainer.should_stop = True  # Lightning then validates, whatever the schedule says
        if trainer.should_stop or self._validates_now(trainer):
            return
        if self.interrupted or time.monotonic() - self.saved_at > 60 * self.minutes:
            assert isinstance(pl_module, LanguageModel)
            pl_module.require_finite(float(outputs["loss"]), "training")
            self._save(trainer)
        if self.interrupted:
            raise Interrupted

    def on_validation_batch_end(self, trainer: Trainer, *args: Any) -> None:
        if self.interrupted and trainer.state.fn != "fit":
            raise Interrupted  # the last evaluation; all there is to save is saved

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn != "fit":
            return
        loss = float(trainer.callback_metrics["val/loss"])
        better = loss < self.best_val_loss
        if better:
            self.best_val_loss = loss
        self._save(trainer, best=better)
        if self.interrupted:
            raise Interrupted

    def _validates_now(self, trainer: Trainer) -> bool:
        """Whether this batch is followed by a validation, which saves by itself."""
        every = trainer.val_check_batch
        return every is not None and (trainer.fit_loop.epoch_loop.total_batch_idx + 1) % every == 0

    def _save(self, trainer: Trainer, *, best: bool = False) -> None:
        with left_out(trainer):
            for writer in tensorboard_writers(trainer):
                writer.flush()  # what was logged before a checkpoint is not logged again after it
            if best:
                # First: killed in between, a resumed run comes here again with the same weights.
                trainer.save_checkpoint(self.folder / "best.ckpt", weights_only=False)
                if trainer.is_global_zero:
                    copy_checkpoint(self.folder / "best.ckpt", self.folder / "last.ckpt")
            else:
                trainer.save_checkpoint(self.folder / "last.ckpt", weights_only=False)
        self.saved_at = time.monotonic()

    def state_dict(self) -> dict[str, Any]:
        return {"best_val_loss": self.best_val_loss}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best_val_loss = state["best_val_loss"]
