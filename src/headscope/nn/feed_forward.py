"""The feed-forward networks of a block, and their activation functions.

Shapes: C embed_dim, F ff_dim.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from headscope.nn.checks import check_positive


class Gelu(nn.Module):
    """GELU (Hendrycks 2016): x times the standard normal distribution function at x."""

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(x)


class GeluTanh(nn.Module):
    """The approximation of GELU that GPT-2 uses (Hendrycks 2016, section 2):
    x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))."""

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(x, approximate="tanh")


class ReluSquared(nn.Module):
    """max(0, x)^2 (So 2021: Primer)."""

    def forward(self, x: Tensor) -> Tensor:
        return ReluSquaredFunction.apply(x)


class ReluSquaredFunction(torch.autograd.Function):
    """Squared ReLU that saves only max(0, x) for the backward pass, because its derivative is 2
    max(0, x). Compared with ReLU and square as two operations, this halves the reads and writes of
    the model's widest tensors."""

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
    """The feed-forward network down_proj(activation(up_proj(x))) of each token, with F hidden
    units. `ff_dim` is F, by default 4 C. Parameters: 2 C F weights and, with `bias`, F + C biases.
    """

    def __init__(
        self,
        *,
        embed_dim: int,
        ff_dim: int | None = None,
        activation: Callable[[], nn.Module] = Gelu,
        bias: bool = False,
    ) -> None:
        super().__init__()
        check_positive(ff_dim=ff_dim)
        ff_dim = 4 * embed_dim if ff_dim is None else ff_dim
        self.activation = activation()
        self.up_proj = nn.Linear(embed_dim, ff_dim, bias=bias)
        self.down_proj = nn.Linear(ff_dim, embed_dim, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.activation(self.up_proj(x)))


def no_feed_forward(*, embed_dim: int, **options: Any) -> None:
    """No feed-forward network: blocks consist of attention only (Elhage 2021). Ignores options."""


class SwiGLU(nn.Module):
    """The gated feed-forward network down_proj(silu(gate_proj(x)) * up_proj(x)) (Shazeer 2020) of
    each token, with F hidden units and silu(x) = x sigmoid(x). `activation` is not used.

    `ff_dim` is F, by default 8 C / 3, rounded up to a multiple of 8: then the network has about as
    many weights as `FeedForward` has by default. Parameters: 3 C F weights and, with `bias`,
    2 F + C biases.
    """

    def __init__(
        self,
        *,
        embed_dim: int,
        ff_dim: int | None = None,
        activation: Callable[[], nn.Module] | None = None,
        bias: bool = False,
    ) -> None:
        super().__init__()
        check_positive(ff_dim=ff_dim)
        ff_dim = 8 * math.ceil(embed_dim / 3) if ff_dim is None else ff_dim
        self.gate_proj = nn.Linear(embed_dim, ff_dim, bias=bias)
        self.up_proj = nn.Linear(embed_dim, ff_dim, bias=bias)
        self.down_proj = nn.Linear(ff_dim, embed_dim, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
