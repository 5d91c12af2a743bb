"""Dot-product attention, written twice.

Shapes: B batch, T queries, S keys, H heads, K kv heads (divides H), D head_dim.

`attend_fused` leaves it to `scaled_dot_product_attention`, which has one kernel for it that keeps
no weights (on a CPU not with dropout, nor with a bias that is learned): training takes this path.
`attend_explicit` takes every step of the equation and returns the weights: analysis takes this
one. Tests hold the two equal. Both take

- q (B, H, T, D), k and v (B, K, S, D): each key head serves H / K query heads in a row;
- `causal` (T, S) and `mask`, as in `headscope.nn.attention.masks`, or None: True where a query may
  look, and where both are given, both must allow it;
- `bias` (1 or H, T, S), added to the scores, or None;
- `scale`, by which q k^T is multiplied; `dropout`, the share of weights that is dropped.

A query that may look nowhere gets zeros, in output and in weights.
"""

import math

import torch.nn.functional as F
from torch import Tensor

from headscope.nn.attention.masks import combine
from headscope.nn.precision import full_precision, precise


def attend_fused(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: Tensor | None = None,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    scale: float,
    dropout: float = 0.0,
) -> tuple[Tensor, None]:
    """softmax(scale q k^T + bias) v, (B, H, T, D), by `scaled_dot_product_attention`.

    A causal mask alone is left to the kernel, which skips what it hides. Key heads are broadcast by
    the kernel, where it has a way to, not copied here.
    """
    grouped = q.size(1) != k.size(1)
    # The kernel puts the first query at the first key, `causal` the last one at the last.
    aligned = q.size(2) == k.size(2)
    if mask is None and bias is None and (causal is None or aligned):
        mixed = F.scaled_dot_product_attention(
            q,
            k,
            v,
            dropout_p=dropout,
            is_causal=causal is not None,
            scale=scale,
            enable_gqa=grouped,
        )
        return mixed, None
    visible, blind = combine(causal, mask), None
    if visible is not None and mask is not None:
        blind = ~visible.any(dim=-1, keepdim=True)
        visible = visible | blind  # softmax over nothing is nan: look anywhere, then forget it
    scores = visible
    if bias is not None:
        scores = bias[None].to(q.dtype)
        if visible is not None:
            scores = scores.masked_fill(~visible, -math.inf)
    mixed = F.scaled_dot_product_attention(
        q, k, v, attn_mask=scores, dropout_p=dropout, scale=scale, enable_gqa=grouped
    )
    return mixed if blind is None else mixed.masked_fill(blind, 0.0), None


def attend_explicit(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: Tensor | None = None,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    scale: float,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """The same step by step (Vaswani 2017, equation 1), and the weights (B, H, T, S) after softmax,
    before dropout. In at least float32, as the kernel computes inside."""
    k, v = one_per_query_head(k, q.size(1)), one_per_query_head(v, q.size(1))
    with full_precision(q):
        scores = scale * (precise(q) @ precise(k).mT)  # (B, H, T, S)
    return weigh(scores, v, causal=causal, mask=mask, bias=bias, dropout=dropout)


def one_per_query_head(x: Tensor, heads: int) -> Tensor:
    """Key or value heads (B, K, S, D) repeated to (B, H, S, D), those of a group side by side."""
    return x.repeat_interleave(heads // x.size(1), dim=1)


def weigh(
    scores: Tensor,
    v: Tensor,
    *,
    causal: Tensor | None,
    mask: Tensor | None,
    bias: Tensor | None,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    """Scores (B, H, T, S) into weights, and values v (B, H, S, D) into their weighted sums.

    Returns the sums (B, H, T, D), as precise as v, and the weights (B, H, T, S), at least float32.
    """
    scores = precise(scores)
    if bias is not None:
        scores = scores + bias
    visible = combine(causal, mask)
    if visible is None:
        weights = scores.softmax(dim=-1)
    else:
        blind = ~visible.any(dim=-1, keepdim=True)
        weights = scores.masked_fill(~(visible | blind), -math.inf).softmax(dim=-1)
        weights = weights.masked_fill(~visible, 0.0)
    with full_precision(v):
        mixed = F.dropout(weights, dropout, training=dropout > 0) @ precise(v)
    return mixed.to(v.dtype), weights
