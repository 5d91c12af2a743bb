"""Dot-product attention, written twice.

Shapes: B batch, T queries, S keys, H heads, K kv heads (divides H), D head_dim.

`attend_fused` calls PyTorch's `scaled_dot_product_attention`, whose kernels keep no weights (on a
CPU not with dropout, nor with a learned bias): training takes this path. `attend_explicit` computes
every step of the equation and returns weights and scores: analysis takes this path. Tests hold the
two equal. `scaled_dot_product` is the same equation as a plain function, for use without a layer.
The two paths take

- q (B, H, T, D), k and v (B, K, S, D): each key head serves H / K query heads in a row;
- `causal` (T, S) and `mask`, as in `headscope.nn.attention.masks`, or None: True where a query may
  look, and where both are given, both must allow it;
- `bias` (1 or H, T, S), added to the scores, or None. Both paths round it to the dtype of q, which
  CUDA's kernels require: in bf16 it keeps 8 significant bits;
- `scale`, by which q k^T is multiplied; `dropout`, the share of weights that is dropped.

A query that may look nowhere gets zeros, in output and in weights.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from headscope.errors import UserError
from headscope.nn.attention.masks import combine
from headscope.nn.precision import no_autocast, upcast_to_float32


class HeadOutputs(NamedTuple):
    """What the heads computed. `outputs` are the weighted sums of the values, before `out_proj`.

    The explicit path also returns `weights` (B, H, T, S), after softmax and before dropout, and
    `scores` (B, H, T, S), scaled and with the position's bias, before the masks and softmax. Both
    are in at least float32. The fused path has neither.
    """

    outputs: Tensor
    weights: Tensor | None = None
    scores: Tensor | None = None

    def without_batch(self) -> "HeadOutputs":
        """The only sequence of the batch."""
        weights = None if self.weights is None else self.weights[0]
        scores = None if self.scores is None else self.scores[0]
        return HeadOutputs(self.outputs[0], weights, scores)


def scaled_dot_product(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """softmax(scale q k^T) v and the weights, softmax(scale q k^T) (Vaswani 2017, equation 1).

    q (..., T, D), k (..., S, D) and v (..., S, E) give outputs (..., T, E), in the dtype of v, and
    weights (..., T, S), in at least float32. Axes before the last two, such as batch and heads, are
    broadcast. `mask`, boolean and broadcast to (..., T, S), is True where a query may look; a query
    that may look nowhere gets zeros. `scale` is 1 / sqrt(D) unless given.

    >>> q = k = v = torch.eye(2)
    >>> outputs, weights = scaled_dot_product(q, k, v, mask=torch.ones(2, 2).tril().bool(), scale=1)
    >>> weights
    tensor([[1.0000, 0.0000],
            [0.2689, 0.7311]])

    Raises UserError when shapes or dtypes do not fit.
    """
    _check(q, k, v, mask)
    scale = 1 / math.sqrt(q.size(-1)) if scale is None else scale
    return weighted_sum(dot_product_scores(q, k, scale), v, mask=mask)


def _check(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> None:
    parts = {"q": q, "k": k, "v": v}
    for name, part in parts.items():
        if part.dim() < 2 or 0 in part.shape or not part.is_floating_point():
            raise UserError(
                f"{name} is {part.dtype} of shape {tuple(part.shape)}: give floating-point numbers "
                "of shape (..., tokens, width), none of them 0"
            )
    shapes = ", ".join(f"{name} {tuple(part.shape)}" for name, part in parts.items())
    if q.size(-1) != k.size(-1) or k.size(-2) != v.size(-2):
        raise UserError(f"{shapes}: give q (..., T, D), k (..., S, D) and v (..., S, E)")
    if mask is not None and mask.dtype != torch.bool:
        raise UserError(f"mask is {mask.dtype}: give torch.bool, True where a query may look")
    try:
        axes = torch.broadcast_shapes(*(part.shape[:-2] for part in parts.values()))
        if mask is not None:
            mask.expand(*axes, q.size(-2), k.size(-2))
    except RuntimeError:
        masked = "" if mask is None else f", mask {tuple(mask.shape)}"
        raise UserError(
            f"{shapes}{masked}: axes before the last two must be equal or 1, and a mask must "
            "broadcast to (..., T, S)"
        ) from None


def attend_masked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: Tensor | None = None,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    scale: float,
    dropout: float = 0.0,
) -> HeadOutputs:
    """softmax(scale q k^T + bias) v, (B, H, T, D), by PyTorch's fused kernels, with a mask or bias
    of our own. (`MultiHeadAttention.attend` calls them itself where the mask is causal alone.)"""
    visible, fully_masked = combine(causal, mask), None
    if visible is not None and mask is not None:
        fully_masked = ~visible.any(dim=-1, keepdim=True)
        visible = visible | fully_masked  # softmax over nothing is NaN: unmask, then set to zero
    added = visible
    if bias is not None:
        added = bias[None].to(q.dtype)
        if visible is not None:
            added = added.masked_fill(~visible, -math.inf)
    if copies_key_heads(q.device.type, grouped=k.size(1) < q.size(1), masked=added is not None):
        k, v = one_per_query_head(k, q.size(1)), one_per_query_head(v, q.size(1))
    outputs = F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=added,
        dropout_p=dropout,
        scale=scale,
        enable_gqa=k.size(1) < q.size(1),
    )
    return HeadOutputs(outputs if fully_masked is None else outputs.masked_fill(fully_masked, 0.0))


def copies_key_heads(device: str, *, grouped: bool, masked: bool) -> bool:
    """Whether grouped key heads must be copied for the fused kernels, one for each query head.

    On CUDA, flash attention takes no mask and the memory-efficient kernel takes no `enable_gqa`.
    With both, PyTorch falls back to the math path, whose memory grows with T x T; a copy of keys
    and values is far smaller.
    """
    return device == "cuda" and grouped and masked


def attend_explicit(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: Tensor | None = None,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    scale: float,
    dropout: float = 0.0,
) -> HeadOutputs:
    """The same step by step, with weights and scores. In at least float32, as the kernel computes
    inside."""
    k, v = one_per_query_head(k, q.size(1)), one_per_query_head(v, q.size(1))
    scores = with_bias(dot_product_scores(q, k, scale), bias, q.dtype)
    outputs, weights = weighted_sum(scores, v, mask=combine(causal, mask), dropout=dropout)
    return HeadOutputs(outputs, weights, scores)


def one_per_query_head(x: Tensor, heads: int) -> Tensor:
    """Key or value heads (B, K, S, D) repeated to (B, H, S, D), those of a group side by side."""
    return x.repeat_interleave(heads // x.size(1), dim=1)


def dot_product_scores(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """scale q k^T, (..., T, S), in at least float32."""
    with no_autocast(q):
        return scale * (upcast_to_float32(q) @ upcast_to_float32(k).mT)


def with_bias(scores: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Scores plus a bias that is rounded to `dtype`, as the fused path rounds it."""
    return scores if bias is None else scores + bias.to(dtype)


def weighted_sum(
    scores: Tensor, v: Tensor, *, mask: Tensor | None = None, dropout: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Scores (..., T, S) to weights, and values v (..., S, D) to their weighted sums.

    Returns the sums (..., T, D), in the dtype of v, and the weights (..., T, S) before dropout.
    """
    if mask is None:
        weights = scores.softmax(dim=-1)
    else:
        fully_masked = ~mask.any(dim=-1, keepdim=True)
        weights = scores.masked_fill(~(mask | fully_masked), -math.inf).softmax(dim=-1)
        weights = weights.masked_fill(~mask, 0.0)
    with no_autocast(v):
        outputs = F.dropout(weights, dropout, training=dropout > 0) @ upcast_to_float32(v)
    return outputs.to(v.dtype), weights
