"""Numbers that are worth more than half precision."""

import torch
from torch import Tensor


def precise(x: Tensor) -> Tensor:
    """x in float32, or in float64 where it is that already: bf16 keeps between two and three
    digits, too few for scores and angles."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def full_precision(x: Tensor) -> torch.autocast:
    """Inside, autocast does not round what is multiplied on the device of x."""
    return torch.autocast(x.device.type, enabled=False)
