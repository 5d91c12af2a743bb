"""Measures the training time of a run. The time for compilation, validation, sampling, pictures and
saving is not included."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer


class Clock(Callback):
    """Counts the training seconds of a run, including the time before the run was resumed.

    Every `log_every_steps` steps, this callback logs `train/tokens_per_second`, averaged over these
    steps. This callback must be the first in the list of callbacks.
    """

    def __init__(self, *, tokens_per_step: int, log_every_steps: int) -> None:
        self.tokens_per_step = tokens_per_step
        self.log_every_steps = log_every_steps
        self.train_seconds = 0.0
        self.earlier_wall_seconds = 0.0
        self.created_at = time.perf_counter()
        self.running_since: float | None = None
        self.last_logged = (0, 0.0)  # step, training seconds

    def wall_seconds(self) -> float:
        """Wall-clock seconds since this object was created, plus the wall-clock seconds of the run
        before it was resumed."""
        return self.earlier_wall_seconds + time.perf_counter() - self.created_at

    def seconds(self) -> float:
        """Training seconds until now."""
        if self.running_since is None:
            return self.train_seconds
        return self.train_seconds + time.perf_counter() - self.running_since

    def pause(self) -> None:
        if self.running_since is not None:
            wait_for_gpu()  # kernels that are still running belong to training
            self.train_seconds = self.seconds()
            self.running_since = None

    def resume(self) -> None:
        if self.running_since is None:
            wait_for_gpu()  # kernels that are still running do not belong to training
            self.running_since = time.perf_counter()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.last_logged = (trainer.global_step, self.train_seconds)

    def on_train_batch_start(self, trainer: Trainer, *args: Any) -> None:
        self.resume()

    def on_train_batch_end(self, trainer: Trainer, *args: Any) -> None:
        step, seconds = trainer.global_step, self.seconds()
        last_step, last_seconds = self.last_logged
        if step % self.log_every_steps == 0 and step > last_step:
            rate = (step - last_step) * self.tokens_per_step / (seconds - last_seconds)
            self.last_logged = (step, seconds)
            for logger in trainer.loggers:
                logger.log_metrics({"train/tokens_per_second": rate}, step=step)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.pause()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.pause()

    def state_dict(self) -> dict[str, Any]:
        return {"train_seconds": self.seconds(), "wall_seconds": self.wall_seconds()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.train_seconds = state["train_seconds"]
        self.earlier_wall_seconds = state["wall_seconds"]


def clock_of(trainer: Trainer) -> Clock:
    return next(callback for callback in callbacks_of(trainer) if isinstance(callback, Clock))


def callbacks_of(trainer: Trainer) -> list[Callback]:
    return trainer.callbacks  # type: ignore[attr-defined]  # not declared by Lightning


def wait_for_gpu() -> None:
    """Waits until the GPU has finished all launched kernels, which run asynchronously."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


@contextmanager
def timer_paused(trainer: Trainer) -> Iterator[None]:
    """Pauses the training timer inside the `with` block."""
    clock = clock_of(trainer)
    running = clock.running_since is not None
    clock.pause()
    yield
    if running:
        clock.resume()
