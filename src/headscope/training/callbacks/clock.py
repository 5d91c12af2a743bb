"""How long training itself takes, without compiling, validation, samples, pictures and saving."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer


class Clock(Callback):
    """Counts the seconds and the tokens of training, over all sessions of a run.

    It comes first in the list of callbacks. Logs `train/tokens_per_second` every
    `log_every_steps`, as the mean since the last.
    """

    def __init__(self, *, tokens_per_step: int, log_every_steps: int) -> None:
        self.tokens_per_step = tokens_per_step
        self.log_every_steps = log_every_steps
        self.train_seconds = 0.0
        self.wall_before = 0.0
        self.born = time.perf_counter()
        self.running_since: float | None = None
        self.logged_at = (0, 0.0)  # step, seconds

    def wall_seconds(self) -> float:
        """Since this object was made, plus the earlier sessions of the run."""
        return self.wall_before + time.perf_counter() - self.born

    def seconds(self) -> float:
        """Training seconds up to now."""
        if self.running_since is None:
            return self.train_seconds
        return self.train_seconds + time.perf_counter() - self.running_since

    def pause(self) -> None:
        if self.running_since is not None:
            finish_launched_work()  # it belongs to the training
            self.train_seconds = self.seconds()
            self.running_since = None

    def go(self) -> None:
        if self.running_since is None:
            finish_launched_work()  # it does not belong to the training
            self.running_since = time.perf_counter()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.logged_at = (trainer.global_step, self.train_seconds)

    def on_train_batch_start(self, trainer: Trainer, *args: Any) -> None:
        self.go()

    def on_train_batch_end(self, trainer: Trainer, *args: Any) -> None:
        step, seconds = trainer.global_step, self.seconds()
        if step % self.log_every_steps == 0 and step > self.logged_at[0]:
            tokens = (step - self.logged_at[0]) * self.tokens_per_step
            rate = tokens / (seconds - self.logged_at[1])
            self.logged_at = (step, seconds)
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
        self.wall_before = state["wall_seconds"]


def clock_of(trainer: Trainer) -> Clock:
    return next(found for found in callbacks_of(trainer) if isinstance(found, Clock))


def callbacks_of(trainer: Trainer) -> list[Callback]:
    return trainer.callbacks  # type: ignore[attr-defined]  # set, but not declared


def finish_launched_work() -> None:
    """Wait for the GPU: it works behind the Python program that launches its kernels."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


@contextmanager
def timer_paused(trainer: Trainer) -> Iterator[None]:
    """What happens in here is not training time."""
    clock = clock_of(trainer)
    running = clock.running_since is not None
    clock.pause()
    yield
    if running:
        clock.go()
