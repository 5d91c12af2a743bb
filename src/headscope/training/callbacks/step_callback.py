"""Base classes of callbacks that run at certain training steps."""

import time
from abc import ABC, abstractmethod
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils.tensorboard import SummaryWriter

from headscope.nn import GPT
from headscope.training.callbacks.clock import callbacks_of, timer_paused
from headscope.training.callbacks.tensorboard_log import tensorboard_writers


class StepCallback(Callback, ABC):
    """Calls `on_due_step` after every training step for which `due(step)` is true, and before
    training if `due(0)` is true.

    The training timer is paused during the call. `on_due_step` must not change the model or use the
    global random number generators, so that training is the same with and without this callback.
    `seconds` is the total time of all calls of `on_due_step`.
    """

    seconds = 0.0

    @abstractmethod
    def due(self, step: int) -> bool:
        """Whether to call `on_due_step` at this step. Step 0 is the untrained model."""

    @abstractmethod
    def on_due_step(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called when a step is due. `trainer.global_step` is the number of finished steps."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.global_step == 0 and self.due(0):
            self._call(trainer, pl_module)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        stepped = (batch_idx + 1) % trainer.accumulate_grad_batches == 0
        if stepped and self.due(trainer.global_step):
            self._call(trainer, pl_module)

    def _call(self, trainer: Trainer, pl_module: LightningModule) -> None:
        with timer_paused(trainer):
            started = time.perf_counter()
            self.on_due_step(trainer, pl_module)
            self.seconds += time.perf_counter() - started

    def state_dict(self) -> dict[str, Any]:
        return {"seconds": self.seconds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seconds = state["seconds"]


class HeadProbe(StepCallback):
    """Measures the model and logs the result to TensorBoard. This happens at every step for which
    `due` is true, and once more when early stopping ends the run.

    `ResumableEarlyStopping` must come before this callback in the list of callbacks.
    """

    @abstractmethod
    def measure(self, model: GPT, step: int, writers: list[SummaryWriter]) -> None:
        """Measures `model` after `step` steps, and logs the result to `writers`."""

    def on_due_step(self, trainer: Trainer, pl_module: LightningModule) -> None:
        writers = tensorboard_writers(trainer)
        if writers:
            assert isinstance(pl_module.model, GPT)
            self.measure(pl_module.model, trainer.global_step, writers)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # `on_train_end` would be too late: the last checkpoint is saved before it.
        stopped_early = trainer.should_stop and trainer.global_step < trainer.max_steps
        if trainer.state.fn == "fit" and stopped_early and not self.due(trainer.global_step):
            self._call(trainer, pl_module)


def watching_seconds(trainer: Trainer) -> float:
    """The total seconds of all `HeadProbe` callbacks of a run, including the time before the run
    was resumed."""
    return sum(probe.seconds for probe in callbacks_of(trainer) if isinstance(probe, HeadProbe))


def spread_steps(number: int, max_steps: int) -> list[int]:
    """Up to `number` steps from 0 to `max_steps` (both included), evenly spaced on a logarithmic
    scale."""
    number = min(number, max_steps + 1)
    if number < 2:
        return [max_steps][:number]
    ratio = max_steps ** (1 / (number - 2)) if number > 2 else 1
    middle = {round(ratio**power) for power in range(number - 2)}
    return sorted({0, max_steps} | middle)
