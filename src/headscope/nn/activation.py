"""What a feed-forward network does between its two matrices, number by number."""

import torch.nn.functional as F
from torch import Tensor


def gelu(x: Tensor) -> Tensor:
    """x times the share of a normal distribution that is below it (Hendrycks 2016), as in GPT-2."""
    return F.gelu(x)


def relu_squared(x: Tensor) -> Tensor:
    """0 below 0, x^2 above (So 2021: Primer)."""
    return F.relu(x).square()
