"""Saves checkpoints during training, and when a signal stops training."""

import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from headscope.stop import Interrupted, StopSignals
from headscope.training.callbacks.clock import timer_paused
from headscope.training.callbacks.tensorboard_log import tensorboard_writers
from headscope.training.checkpoint_io import copy_checkpoint
from headscope.training.module import LanguageModel
from headscope.training.run_folder import CHECKPOINTS, EVENT_TIME, event_files


class CheckpointSaver(Callback):
    """Saves two checkpoints in `folder`: `last.safetensors` is the newest, and `best.safetensors`
    has the lowest validation loss.

    `last.safetensors` is saved after every validation, when `minutes` have passed since the last
    save, and after a stop signal (see `headscope.stop`). After a stop signal, training first
    finishes the current training step, or the validation. Then this callback saves
    `last.safetensors` and raises `Interrupted`.

    This must be the last callback in the list, so that a checkpoint contains the states of all
    other callbacks after the step that it saves.
    """

    def __init__(
        self,
        *,
        folder: Path,
        minutes: float,
        largest: Callable[..., tuple[int, ...]],
    ) -> None:
        self.folder = folder
        self.minutes = minutes
        self.largest = largest
        self.best_val_loss = math.inf
        self.logged: dict[str, list[int]] = {}  # see `lost_steps`
        self.saved_at = time.monotonic()
        self.signals = StopSignals()
        self.on_first_save: Callable[[], None] | None = None

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        checkpoint["logged"] = self.logged

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        self.logged = dict(checkpoint["logged"])

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.signals.quiet = not trainer.is_global_zero
        self.signals.install()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, *args: Any
    ) -> None:
        if trainer.global_step >= trainer.max_steps:
            trainer.should_stop = True  # makes Lightning validate after the last step
        if trainer.should_stop or self._validates_now(trainer):
            return
        late = time.monotonic() - self.saved_at > 60 * self.minutes
        number, save = self.largest(self.signals.requested, int(late))
        if number or save:
            assert isinstance(pl_module, LanguageModel)
            loss = trainer.strategy.reduce(outputs["loss"], reduce_op="mean")
            pl_module.require_finite(float(loss), "training")
            self._save(trainer)
        if number:
            raise Interrupted(number)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn != "fit":
            return
        loss = float(trainer.callback_metrics["val/loss"])
        better = loss < self.best_val_loss
        if better:
            self.best_val_loss = loss
        self._save(trainer, best=better)
        self._stop_if_requested()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.signals.restore()
        self._stop_if_requested()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self.signals.restore()

    def _stop_if_requested(self) -> None:
        """Raises Interrupted if one of the processes has received a signal. Every process calls
        this at the same points and gets the same result, so that all of them stop."""
        (number,) = self.largest(self.signals.requested)
        if number:
            raise Interrupted(number)

    def _validates_now(self, trainer: Trainer) -> bool:
        """Whether a validation follows this batch. If so, `on_validation_end` saves the
        checkpoint."""
        every = trainer.val_check_batch
        return every is not None and (trainer.fit_loop.epoch_loop.total_batch_idx + 1) % every == 0

    def _save(self, trainer: Trainer, *, best: bool = False) -> None:
        last, best_file = (self.folder / name for name in CHECKPOINTS)
        with timer_paused(trainer):
            # A run that resumes from this checkpoint does not log the earlier steps again.
            for writer in tensorboard_writers(trainer):
                writer.flush()
                *_, newest = event_files(Path(writer.log_dir))  # that of this process
                with newest.open("ab") as log:
                    os.fsync(log.fileno())
                    self.logged[newest.name[EVENT_TIME:]] = [log.tell(), trainer.global_step]
            if best:
                # Save the best checkpoint first. If the process is killed between the two saves, a
                # resumed run repeats the steps since the old last.safetensors, and saves the same
                # best.safetensors again.
                trainer.save_checkpoint(best_file, weights_only=False)
                if trainer.is_global_zero:
                    copy_checkpoint(best_file, last)
            else:
                trainer.save_checkpoint(last, weights_only=False)
        self.saved_at = time.monotonic()
        if self.on_first_save:
            self.on_first_save()
            self.on_first_save = None

    def state_dict(self) -> dict[str, Any]:
        best = self.best_val_loss if math.isfinite(self.best_val_loss) else None  # for JSON
        return {"best_val_loss": best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        best = state["best_val_loss"]
        self.best_val_loss = math.inf if best is None else best
