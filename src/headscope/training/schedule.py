"""Learning rate schedules: pure functions of the step, as a factor on each group's own rate."""

import math

from headscope.errors import UserError


def warmup_cosine(step: int, *, max_steps: int, warmup_steps: int, final_fraction: float) -> float:
    """A straight line up over `warmup_steps`, then half a cosine down to `final_fraction` at
    `max_steps` (Loshchilov 2017, without restarts)."""
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    done = min(1.0, (step - warmup_steps) / max(1, max_steps - warmup_steps))
    return final_fraction + (1 - final_fraction) * 0.5 * (1 + math.cos(math.pi * done))


def warmup_linear(
    step: int, *, max_steps: int, warmup_steps: int, cooldown: float, final_fraction: float
) -> float:
    """A straight line up over `warmup_steps`, level, and over the last share `cooldown` of the
    steps a straight line down to `final_fraction` at `max_steps` (Hu 2024: warmup-stable-decay).

    Raises UserError when `cooldown` is not from 0 to 1.
    """
    if not 0 <= cooldown <= 1:
        raise UserError(f"cooldown={cooldown} must be from 0 to 1, a share of the steps")
    up = min(1.0, (step + 1) / (warmup_steps + 1))
    left = max(0.0, 1 - step / max_steps)
    down = 1.0 if left >= cooldown else final_fraction + (1 - final_fraction) * left / cooldown
    return min(up, down)
