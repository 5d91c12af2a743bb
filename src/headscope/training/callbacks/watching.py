"""Looking at the model while it trains, at steps of one's own choice."""

import time
from abc import ABC, abstractmethod
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils.tensorboard import SummaryWriter

from headscope.nn import GPT
from headscope.training.callbacks.clock import callbacks_of, timer_paused
from headscope.training.callbacks.writers import tensorboard_writers


class StepCallback(Callback, ABC):
    """Acts at every step that is `due`: before the first, and after others. What happens there is
    not training time, and must not change the model or draw from the global random numbers: the
    training never learns of it. `seconds` is what it took.
    """

    seconds = 0.0

    @abstractmethod
    def due(self, step: int) -> bool:
        """Whether to act at this step, 0 for the untrained model."""

    @abstractmethod
    def act(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """What to do after `trainer.global_step` steps."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.global_step == 0 and self.due(0):
            self._act(trainer, pl_module)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        stepped = (batch_idx + 1) % trainer.accumulate_grad_batches == 0
        if stepped and self.due(trainer.global_step):
            self._act(trainer, pl_module)

    def _act(self, trainer: Trainer, pl_module: LightningModule) -> None:
        with timer_paused(trainer):
            started = time.perf_counter()
            self.act(trainer, pl_module)
            self.seconds += time.perf_counter() - started

    def state_dict(self) -> dict[str, Any]:
        return {"seconds": self.seconds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seconds = state["seconds"]


class HeadProbe(StepCallback):
    """Logs to TensorBoard what the model is like, at every step that is `due`, and once more when
    early stopping ends the run. `Patience` stands before it in the list of callbacks."""

    @abstractmethod
    def look(self, model: GPT, step: int, writers: list[SummaryWriter]) -> None:
        """Log what `model` is like after `step` steps."""

    def act(self, trainer: Trainer, pl_module: LightningModule) -> None:
        writers = tensorboard_writers(trainer)
        if writers:
            assert isinstance(pl_module.model, GPT)
            self.look(pl_module.model, trainer.global_step, writers)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # Not in `on_train_end`: the last checkpoint must be saved after everything is logged.
        stopped_early = trainer.should_stop and trainer.global_step < trainer.max_steps
        if trainer.state.fn == "fit" and stopped_early and not self.due(trainer.global_step):
            self._act(trainer, pl_module)


def watching_seconds(trainer: Trainer) -> float:
    """What looking at the model took, over all sessions of a run."""
    return sum(found.seconds for found in callbacks_of(trainer) if isinstance(found, HeadProbe))


def spread_steps(number: int, max_steps: int) -> list[int]:
    """At most `number` steps from 0 to `max_steps`, both included, spread evenly in log time.

    TensorBoard keeps ten images a tag unless told otherwise.
    """
    number = min(number, max_steps + 1)
    if number < 2:
        return [max_steps][:number]
    ratio = max_steps ** (1 / (number - 2)) if number > 2 else 1
    middle = {round(ratio**power) for power in range(number - 2)}
    return sorted({0, max_steps} | middle)
