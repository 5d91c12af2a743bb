"""Measures the training time of a run, without compilation, validation, callbacks and saving."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class TrainingTimer:
    """Counts the training seconds of a run, including the time before the run was resumed."""

    def __init__(self) -> None:
        self.created_at = time.perf_counter()  # or earlier, if the run is resumed
        self.before = 0.0  # training seconds until the last pause
        self.running_since: float | None = None

    def wall_seconds(self) -> float:
        """Wall-clock seconds of the run, without the time between its parts."""
        return time.perf_counter() - self.created_at

    def seconds(self) -> float:
        """Training seconds until now."""
        if self.running_since is None:
            return self.before
        return self.before + time.perf_counter() - self.running_since

    def pause(self) -> None:
        if self.running_since is not None:
            wait_for_gpu()  # kernels that are still running belong to training
            self.before = self.seconds()
            self.running_since = None

    def resume(self) -> None:
        if self.running_since is None:
            wait_for_gpu()  # kernels that are still running do not belong to training
            self.running_since = time.perf_counter()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pauses the timer inside the `with` block."""
        running = self.running_since is not None
        self.pause()
        yield
        if running:
            self.resume()

    def state_dict(self) -> dict[str, Any]:
        return {"train_seconds": self.seconds(), "wall_seconds": self.wall_seconds()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.before = float(state["train_seconds"])
        self.created_at -= float(state["wall_seconds"])


def wait_for_gpu() -> None:
    """Waits until the GPU has finished all launched kernels, which run asynchronously."""
    if torch.cuda.is_initialized() or torch.mps.is_available():
        torch.accelerator.synchronize()
