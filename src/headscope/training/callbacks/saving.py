"""Saves checkpoints during training, and when a signal stops training."""

import math
import os
import signal
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import Checkpoint

from headscope.config.parse import Count, NonNegative
from headscope.errors import UserError
from headscope.stop import Interrupted, StopSignals
from headscope.trained import load
from headscope.trained.checkpoint import read, steps_of
from headscope.trained.checkpoint.file import SUFFIX
from headscope.trained.records import add_records, digest_of_checksums, entries_in, write_entries
from headscope.training.callbacks.steps import MEGABYTE, evenly_chosen, spread_steps
from headscope.training.checkpoint_io import SafetensorsIO, copy_checkpoint
from headscope.training.loggers import event_files, tensorboard_writers

KEPT = 10


class CheckpointSaver(Checkpoint):
    """Saves in the folder `checkpoints` of the Trainer's `default_root_dir`:

    - `last.safetensors`, the newest state: after every validation, when `every_minutes` minutes
      have passed since the last save, and after a stop signal (see `headscope.stop`). After the
      signal, training finishes the step or the validation, saves, and raises `Interrupted`;
    - `best.safetensors`, the state with the lowest validation loss;
    - for each step in `keep_steps`, the weights, for example `step_000100.safetensors`, for
      sampling, for analysis and as `init_from`. A run cannot be resumed from them. By default,
      these are KEPT steps, evenly spaced on a logarithmic scale, or as many of them as fit in
      `keep_megabytes`.

    Lightning calls subclasses of `Checkpoint` after all other callbacks, so a checkpoint contains
    the states of all of them after the step that it saves. The records of its heads are in
    heads.json (see `HeadPlan`). In a Trainer without `SafetensorsIO`,
    the files are Lightning's own, with the suffix `.ckpt`. With `fast_dev_run`, nothing is saved.
    """

    def __init__(
        self,
        *,
        every_minutes: NonNegative = 5.0,
        keep_steps: tuple[Count, ...] | None = None,
        keep_megabytes: NonNegative = 150.0,
    ) -> None:
        self.every_minutes = every_minutes
        self.given_steps, self.keep_megabytes = keep_steps, keep_megabytes
        self.keep_steps: frozenset[int] = frozenset()  # chosen in `setup`
        self.best_val_loss = math.inf
        self.saved_at = time.monotonic()
        self.saved_step = -1
        self.signals = StopSignals()
        self.saved_for = 0  # the signal after which a step has been saved
        self.cpu_group: Any = None  # torch.distributed.ProcessGroup

    def state_dict(self) -> dict[str, Any]:
        best = self.best_val_loss if math.isfinite(self.best_val_loss) else None  # for JSON
        return {"best_val_loss": best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        best = state["best_val_loss"]
        self.best_val_loss = math.inf if best is None else float(best)

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self.folder = Path(trainer.default_root_dir) / "checkpoints"
        ours = isinstance(trainer.strategy.checkpoint_io, SafetensorsIO)
        self.suffix = SUFFIX if ours else ".ckpt"
        if trainer.world_size > 1 and not self.cpu_group:
            self.cpu_group = torch.distributed.new_group(backend="gloo")
        if stage == "fit":
            self.keep_steps = frozenset(self._chosen_steps(trainer.max_steps, pl_module))
            pl_module.heads.kept = self.keep_steps

    def _chosen_steps(self, last: int, pl_module: Any) -> Collection[int]:
        """The steps to keep in a training of `last` steps."""
        if self.given_steps is None:
            size = sum(weight.nbytes for weight in pl_module.parameters())
            fit = int(self.keep_megabytes * MEGABYTE // size)
            return evenly_chosen(spread_steps(KEPT, last), min(KEPT, fit)) if last > 0 else ()
        late = [step for step in sorted(self.given_steps) if step > last]
        if late:
            key = "callbacks.saving.keep_steps"
            pl_module.print(f"{key}: {late} are skipped: trainer.max_steps={last}")
        return self.given_steps

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.signals.quiet = not trainer.is_global_zero
        if not trainer.fast_dev_run:
            self.signals.install()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        if self.saved_for:
            self._interrupt(trainer, pl_module, self.saved_for)
        if trainer.global_step == 0:
            self._keep(trainer, pl_module)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, *args: Any) -> None:
        self._keep(trainer, pl_module)
        if validates_now(trainer):
            return  # `on_validation_end` saves
        late = time.monotonic() - self.saved_at > 60 * self.every_minutes
        number, save = self._largest(self.signals.requested, int(late))
        if number or save:
            loss = trainer.strategy.reduce(outputs["loss"], reduce_op="mean")
            pl_module.require_finite(float(loss), "training")
            self._save(trainer, pl_module)
        # Before the next step, Lightning logs what callbacks have logged with `self.log`.
        self.saved_for = number

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        loss = float(trainer.callback_metrics["val/loss"])
        better = loss < self.best_val_loss
        if better:
            self.best_val_loss = loss
        self._save(trainer, pl_module, best=better)
        (self.saved_for,) = self._largest(self.signals.requested)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        stopped_early = trainer.global_step < trainer.max_steps  # callbacks have measured again
        if self.saved_step != trainer.global_step or stopped_early:
            self._save(trainer, pl_module)
        self.signals.restore()
        (number,) = self._largest(self.signals.requested)  # the same in every process
        if number:
            self._interrupt(trainer, pl_module, number)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        try:
            self._record_heads(trainer, pl_module)
        except KeyboardInterrupt:  # Lightning would exit with the code 1
            raise Interrupted(signal.SIGINT) from None

    def _interrupt(self, trainer: Any, pl_module: Any, number: int) -> None:
        with suppress(KeyboardInterrupt):  # a second one
            self._record_heads(trainer, pl_module)
        raise Interrupted(number)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self.signals.restore()

    def _largest(self, *numbers: int) -> tuple[int, ...]:
        """For each number, the largest value in all processes."""
        if self.cpu_group is None:
            return numbers
        tensor = torch.tensor(numbers)  # on the CPU, so that this does not wait for a GPU
        torch.distributed.all_reduce(tensor, torch.distributed.ReduceOp.MAX, self.cpu_group)
        return tuple(tensor.tolist())

    def _save(self, trainer: Any, pl_module: Any, *, best: bool = False) -> None:
        if trainer.fast_dev_run:
            return
        last, best_file = (self.folder / f"{name}{self.suffix}" for name in ("last", "best"))
        with pl_module.timer.paused():
            # A run that resumes from this checkpoint does not log the earlier steps again.
            for writer in tensorboard_writers(trainer):
                writer.flush()
                for newest in event_files(Path(writer.log_dir))[-1:]:  # that of this process
                    with newest.open("ab") as log:
                        os.fsync(log.fileno())
            if best:
                # If the process is killed between the two saves, a resumed run repeats the steps
                # since the old last.safetensors, and saves the same best.safetensors again.
                trainer.save_checkpoint(best_file, weights_only=False)
                if trainer.is_global_zero:
                    copy_checkpoint(best_file, last)
            else:
                trainer.save_checkpoint(last, weights_only=False)
        self.saved_at, self.saved_step = time.monotonic(), trainer.global_step

    def _keep(self, trainer: Any, pl_module: Any) -> None:
        """Saves the weights if this is one of `keep_steps`."""
        if trainer.global_step in self.keep_steps and not trainer.fast_dev_run:
            file = self.folder / f"step_{trainer.global_step:06}{self.suffix}"
            with pl_module.timer.paused():
                trainer.save_checkpoint(file, weights_only=True)
                if self._records(trainer, pl_module):
                    add_records(self.folder, [pl_module.heads.record(pl_module)])

    def _records(self, trainer: Any, pl_module: Any) -> bool:
        """Whether this process keeps the records of the checkpoints. Lightning's own have none."""
        writes = trainer.is_global_zero and not trainer.fast_dev_run
        return writes and pl_module.heads.measures and self.suffix == SUFFIX

    def _record_heads(self, trainer: Any, pl_module: Any) -> None:
        """Measures the heads of the checkpoints without a record, at the end. Removes the records
        of files that are gone."""
        if not self._records(trainer, pl_module):
            return
        plan = pl_module.heads
        before, entries = entries_in(self.folder), {}
        if plan.latest:
            before[plan.latest.digest] = plan.latest.stored()
        best_and_last = (self.folder / f"{name}{SUFFIX}" for name in ("best", "last"))
        # Without a record, heads are measured when a checkpoint is opened.
        with suppress(UserError, OSError, torch.OutOfMemoryError), pl_module.timer.paused():
            for file in (*best_and_last, *steps_of(self.folder).values()):
                with suppress(UserError):  # missing, damaged, or put there by the user
                    digest = digest_of_checksums(read(file).data["checksums"])
                    if digest not in before:
                        loaded = load(file, device=trainer.strategy.root_device)
                        recorder = plan.recorder(pl_module)
                        record = recorder(loaded.model, digest=digest, step=loaded.step)
                        before[digest] = record.stored()
                    entries[digest] = before[digest]
            write_entries(self.folder, entries)


def validates_now(trainer: Any) -> bool:
    """Whether a validation follows this batch."""
    if not trainer.enable_validation:
        return False
    last = trainer.should_stop or trainer.global_step >= trainer.max_steps > 0
    every = trainer.val_check_batch
    batches = trainer.fit_loop.epoch_loop.total_batch_idx + 1
    return last or (every is not None and batches % every == 0)
