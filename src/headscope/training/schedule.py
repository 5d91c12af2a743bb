"""Learning rate schedules. A schedule maps the step to a factor, by which all learning rates are
multiplied. It depends on nothing else, so a resumed run needs no saved state."""

import math
from abc import ABC, abstractmethod

from headscope.errors import UserError


class Schedule(ABC):
    """Maps the number of finished steps to the factor of the next step, a finite number."""

    @abstractmethod
    def __call__(self, step: int) -> float: ...


class WarmupCosine(Schedule):
    """Linear warm-up over `warmup_steps`, then cosine decay to `final_fraction` at `max_steps`
    (Loshchilov 2017, without restarts)."""

    def __init__(self, *, max_steps: int, warmup_steps: int, final_fraction: float) -> None:
        check_warmup(warmup_steps, final_fraction)
        self.warmup_steps, self.final_fraction = warmup_steps, final_fraction
        self.decay_steps = max(1, max_steps - warmup_steps)

    def __call__(self, step: int) -> float:
        if step < self.warmup_steps:
            return (step + 1) / (self.warmup_steps + 1)
        progress = min(1.0, (step - self.warmup_steps) / self.decay_steps)
        cosine = 0.5 * (1 + math.cos(math.pi * progress))
        return self.final_fraction + (1 - self.final_fraction) * cosine


class WarmupLinear(Schedule):
    """Linear warm-up over `warmup_steps`, then a constant rate, then in the fraction `cooldown` of
    all steps linear decay to `final_fraction` at `max_steps` (Hu 2024: warmup-stable-decay)."""

    def __init__(
        self, *, max_steps: int, warmup_steps: int, cooldown: float, final_fraction: float
    ) -> None:
        check_warmup(warmup_steps, final_fraction)
        if not 0 <= cooldown <= 1:
            raise UserError(f"cooldown={cooldown} must be from 0 to 1: a fraction of all steps")
        self.max_steps, self.warmup_steps = max_steps, warmup_steps
        self.cooldown, self.final_fraction = cooldown, final_fraction

    def __call__(self, step: int) -> float:
        up = min(1.0, (step + 1) / (self.warmup_steps + 1))
        left = max(0.0, 1 - step / self.max_steps)
        if left >= self.cooldown:
            return up
        down = self.final_fraction + (1 - self.final_fraction) * left / self.cooldown
        return min(up, down)


def check_warmup(warmup_steps: int, final_fraction: float) -> None:
    if warmup_steps < 0 or final_fraction < 0:
        raise UserError(f"{warmup_steps=} and {final_fraction=} must be at least 0")
