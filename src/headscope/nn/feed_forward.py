"""The feed-forward network of a block, and its activation functions.

Shapes: C embed_dim.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


def gelu(x: Tensor) -> Tensor:
    """GELU (Hendrycks 2016): x times the cumulative distribution function of the standard normal
    distribution at x. This is the exact GELU; GPT-2 uses its tanh approximation."""
    return F.gelu(x)


def relu_squared(x: Tensor) -> Tensor:
    """max(0, x)^2 (So 2021: Primer)."""
    return ReluSquared.apply(x)


class ReluSquared(torch.autograd.Function):
    """Squared ReLU that saves only max(0, x) for the backward pass, because its derivative is 2
    max(0, x). Compared with two separate operations, ReLU and square, this halves the reads and
    writes of the model's widest tensors."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        positive = F.relu(x)
        ctx.save_for_backward(positive)
        return positive.square()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (positive,) = ctx.saved_tensors
        return grad * positive * 2


class FeedForward(nn.Module):
    """The feed-forward network down_proj(activation(up_proj(x))), with 4 C hidden units. It
    processes each token separately.

    Parameters: 8 C^2 weights and, with `bias`, 5 C biases.
    """

    def __init__(
        self, *, embed_dim: int, activation: Callable[[Tensor], Tensor] = gelu, bias: bool = False
    ) -> None:
        super().__init__()
        self.activation = activation
        self.up_proj = nn.Linear(embed_dim, 4 * embed_dim, bias=bias)
        self.down_proj = nn.Linear(4 * embed_dim, embed_dim, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.activation(self.up_proj(x)))
