"""Learning rate schedules. A schedule is a function that maps the step to a factor. All learning
rates are multiplied by this factor."""

import math

from headscope.errors import UserError


def warmup_cosine(step: int, *, max_steps: int, warmup_steps: int, final_fraction: float) -> float:
    """Linear warm-up over `warmup_steps`, then cosine decay to `final_fraction` at `max_steps`
    (Loshchilov 2017, without restarts)."""
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    progress = min(1.0, (step - warmup_steps) / max(1, max_steps - warmup_steps))
    return final_fraction + (1 - final_fraction) * 0.5 * (1 + math.cos(math.pi * progress))


def warmup_linear(
    step: int, *, max_steps: int, warmup_steps: int, cooldown: float, final_fraction: float
) -> float:
    """Linear warm-up over `warmup_steps`, then a constant rate, then linear decay to
    `final_fraction` at `max_steps` (Hu 2024: warmup-stable-decay).

    `cooldown` is the fraction of all steps in which the rate decays. Raises UserError if `cooldown`
    is not between 0 and 1.
    """
    if not 0 <= cooldown <= 1:
        raise UserError(
            f"cooldown={cooldown} must be from 0 to 1: it is a fraction of all training steps"
        )
    up = min(1.0, (step + 1) / (warmup_steps + 1))
    left = max(0.0, 1 - step / max_steps)
    down = 1.0 if left >= cooldown else final_fraction + (1 - final_fraction) * left / cooldown
    return min(up, down)
