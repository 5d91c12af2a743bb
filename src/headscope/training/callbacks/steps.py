"""The base class of callbacks that log heads, and how to choose training steps."""

import time
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from lightning.pytorch import Callback, Trainer

from headscope.data.module import TokenDataModule
from headscope.errors import UserError
from headscope.training.module import LanguageModel

MEGABYTE = 10**6


class StepCallback(Callback, ABC):
    """Calls `log_heads` at each step at which heads are measured (see `HeadPlan`), and once more at
    the end of a training that stops early. The training timer is paused meanwhile, and `seconds` is
    the total time. `log_heads` must not change the model or use the global random number
    generators."""

    seconds = 0.0
    ended = -1  # the step of an early stop, after which a resumed run does not log again

    @abstractmethod
    def log_heads(self, trainer: Trainer, pl_module: LanguageModel, *, at_stop: bool) -> None:
        """Logs what is planned at `trainer.global_step`, the number of finished steps. With
        `at_stop`, training has stopped early, and what was not planned at this step is logged."""

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, *args: Any) -> None:
        if trainer.global_step == 0:
            self.on_train_batch_end(trainer, pl_module)

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, *args: Any) -> None:
        if trainer.global_step in pl_module.heads.steps:
            self.call(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        step = trainer.global_step
        if pl_module.heads.measures and step < trainer.max_steps and step != self.ended:
            self.ended = step
            self.call(trainer, pl_module, at_stop=True)

    def call(self, trainer: Trainer, pl_module: Any, *, at_stop: bool = False) -> None:
        with pl_module.timer.paused():
            started = time.perf_counter()
            self.log_heads(trainer, pl_module, at_stop=at_stop)
            self.seconds += time.perf_counter() - started

    def state_dict(self) -> dict[str, Any]:
        return {"seconds": self.seconds, "ended": self.ended}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seconds = float(state["seconds"])
        self.ended = int(state["ended"])


def last_step(trainer: Trainer) -> int:
    if trainer.max_steps < 1:
        raise UserError("headscope's callbacks choose their steps from Trainer(max_steps=...)")
    return trainer.max_steps


def data_of(trainer: Any) -> TokenDataModule:
    data = trainer.datamodule
    if not isinstance(data, TokenDataModule):
        raise UserError("headscope's callbacks need fit(..., datamodule=) with a TokenDataModule")
    return data


def spread_steps(number: int, max_steps: int) -> list[int]:
    """Up to `number` steps from 0 to `max_steps`, both included, evenly spaced on a log scale."""
    if number < 2:
        return [max_steps][:number]
    return sorted({0, *np.geomspace(max_steps, 1, number - 1).round().astype(int).tolist()})


def snapshot_steps(number: int, max_steps: int) -> list[int]:
    """Up to `number` steps from 0 to `max_steps` (both included). Half of them are evenly spaced on
    a logarithmic scale, and the others on a linear scale, as far as these halves differ."""
    chosen = set(spread_steps(2 if number == 2 else (number + 1) // 2, max_steps))
    even = number - len(chosen)
    return sorted(chosen | {round(max_steps * n / (even + 1)) for n in range(1, even + 1)})


def evenly_chosen(steps: list[int], number: int) -> list[int]:
    """Up to `number` of the sorted `steps`, evenly spaced in this list. The last step is one of
    them, and the first step if there are several."""
    places = np.linspace(len(steps) - 1, 0, number).round().astype(int).tolist()
    return [steps[place] for place in sorted({*places})]
