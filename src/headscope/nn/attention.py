"""Causal multi-head self-attention.

Shapes: B batch, T queries, S keys, C embed_dim, H heads, D head_dim.

The same attention is written twice. `attend_fused` runs in one kernel and keeps no weights:
training never leaves it. `attend_explicit` takes every step of the equation and returns the
weights: analysis reads them there. A test holds the two equal.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Attend = Callable[..., tuple[Tensor, Tensor | None]]


def attend_fused(
    q: Tensor, k: Tensor, v: Tensor, *, causal: Tensor, dropout: float = 0.0
) -> tuple[Tensor, None]:
    """softmax(q k^T / sqrt(D)) v through `scaled_dot_product_attention`, which keeps no weights.

    q, k and v are (B, H, T, D) and so is the result. `causal` is not read: the kernel makes the
    same mask by itself and skips what it hides.
    """
    return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True), None


def attend_explicit(
    q: Tensor, k: Tensor, v: Tensor, *, causal: Tensor, dropout: float = 0.0
) -> tuple[Tensor, Tensor]:
    """The same step by step (Vaswani 2017, equation 1); also returns the weights (B, H, T, S).

    `causal` (T, S) is True where a query may look. The weights are those after softmax and
    before dropout, so that every row sums to one.
    """
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))  # (B, H, T, S)
    scores = scores.masked_fill(~causal, -math.inf)
    # bf16 softmax loses the tail of long rows
    weights = scores.float().softmax(dim=-1).to(q.dtype)
    return F.dropout(weights, dropout, training=dropout > 0) @ v, weights


class MultiHeadAttention(nn.Module):
    """Project, split into heads, attend causally, merge, project back (Vaswani 2017, 3.2.2).

    Maps (B, T, C) to (B, T, C). `attend` is the function that does the attending; it is an
    attribute so that `headscope.analysis` can put the explicit one in its place and read the
    weights of a model that does not know it is being watched.

    Parameters: 4 C^2 weights, plus 3 C biases with `qkv_bias` and C with `out_bias`.

    Raises ValueError when `heads` does not divide `embed_dim`, or the input is longer than
    `block_size`.
    """

    mask: Tensor

    def __init__(
        self,
        *,
        embed_dim: int,
        heads: int,
        block_size: int,
        dropout: float = 0.0,
        qkv_bias: bool = False,
        out_bias: bool = False,
    ) -> None:
        super().__init__()
        if heads < 1 or embed_dim % heads:
            raise ValueError(
                f"embed_dim={embed_dim} must be a multiple of heads={heads}: "
                "every head takes an equal share of the width"
            )
        self.heads = heads
        self.head_dim = embed_dim // heads
        self.dropout = dropout
        self.attend: Attend = attend_fused
        self.qkv = nn.Linear(embed_dim, 3 * embed_dim, bias=qkv_bias)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=out_bias)
        mask = torch.ones(block_size, block_size, dtype=torch.bool).tril()
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, embed_dim = x.shape
        if length > self.mask.size(0):
            raise ValueError(f"{length} tokens are more than block_size={self.mask.size(0)}")
        q, k, v = (
            part.view(batch, length, self.heads, self.head_dim).transpose(1, 2)  # (B, H, T, D)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        mixed, _ = self.attend(
            q,
            k,
            v,
            causal=self.mask[:length, :length],
            dropout=self.dropout if self.training else 0.0,
        )
        return self.out_proj(mixed.transpose(1, 2).reshape(batch, length, embed_dim))
