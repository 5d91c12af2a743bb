"""Dot-product attention, in two implementations.

Shapes: B batch, T queries, S keys, H heads, K kv heads (divides H), D head_dim.

The fused path, `attend_fused`, calls PyTorch's `scaled_dot_product_attention`, whose kernels do not
return the weights. Training uses it. The explicit path, `attend_explicit`, computes every step of
the equation and returns weights and scores. Analysis uses it. Tests compare the two paths. Both
have the same arguments:

- q (B, H, T, D), k and v (B, K, S, D). Each key head serves H / K consecutive query heads.
- `causal` (T, S) is the causal mask, with the queries aligned to the last keys. `mask` is an
  additional mask (see `headscope.nn.masks`). A query may look where both are True. None hides
  nothing. If a query may look at no key, its output and weights are zero.
- `bias` (1 or H, T, S) is added to the scores; None adds nothing. Both paths round the bias to the
  dtype of q, because CUDA kernels require this. In bf16, the bias keeps 8 significant bits.
- `scale` multiplies q k^T. `dropout` is the probability that a weight is set to zero.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from headscope.nn.block_sparse import attend_skipping_blocks, can_skip_blocks
from headscope.nn.masks import combine_masks
from headscope.nn.precision import no_autocast, upcast_to_float32


class HeadOutputs(NamedTuple):
    """The results of all heads. `outputs` are the weighted sums of the values, before `out_proj`.

    `weights` (B, H, T, S) are those after softmax and before dropout. `scores` (B, H, T, S) are
    scaled and include the position's bias, but no mask. Both are at least float32; None if fused.
    """

    outputs: Tensor
    weights: Tensor | None = None
    scores: Tensor | None = None


def attend_fused(
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
    """Computes softmax(scale q k^T + bias) v, (B, H, T, D), with PyTorch's fused kernels."""
    if mask is not None and bias is None and can_skip_blocks(q, mask, dropout=dropout):
        return HeadOutputs(attend_skipping_blocks(q, k, v, causal, mask, scale=scale))
    is_causal = causal is not None and mask is None and bias is None and q.size(2) == k.size(2)
    attn_mask = None if is_causal else combine_masks(causal, mask)
    fully_masked = None
    if attn_mask is not None and mask is not None:
        fully_masked = ~attn_mask.any(dim=-1, keepdim=True)
        attn_mask = attn_mask | fully_masked  # avoids NaN; these outputs are set to zero below
    if bias is not None:
        bias = bias[None].to(q.dtype)
        attn_mask = bias if attn_mask is None else bias.masked_fill(~attn_mask, -math.inf)
    if attn_mask is not None and attn_mask.stride(-1) != 1:
        attn_mask = attn_mask.contiguous()  # required by CUDA's fused kernels
    grouped = k.size(1) < q.size(1)
    if grouped and not supports_grouped(q.device.type, q.dtype, masked=attn_mask is not None):
        k, v, grouped = one_per_query_head(k, q.size(1)), one_per_query_head(v, q.size(1)), False
    outputs = F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=attn_mask,
        dropout_p=dropout,
        is_causal=is_causal,
        scale=scale,
        enable_gqa=grouped,
    )
    return HeadOutputs(outputs if fully_masked is None else outputs.masked_fill(fully_masked, 0.0))


def supports_grouped(device: str, dtype: torch.dtype, *, masked: bool) -> bool:
    """Whether a fused kernel supports key heads that serve several query heads (`enable_gqa`).

    On CUDA, only flash attention supports them, and only in 16 bits and without a mask. Otherwise
    PyTorch would use the math path, whose memory grows with T x S, while repeated keys need little.
    """
    return device != "cuda" or (not masked and dtype in (torch.bfloat16, torch.float16))


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
    """Like `attend_fused`, but computes step by step, and also returns weights and scores. The
    precision is at least float32, as inside the fused kernels."""
    k, v = one_per_query_head(k, q.size(1)), one_per_query_head(v, q.size(1))
    scores = with_bias(dot_product_scores(q, k, scale), bias, q.dtype)
    outputs, weights = weighted_sum(scores, v, mask=combine_masks(causal, mask), dropout=dropout)
    return HeadOutputs(outputs, weights, scores)


def one_per_query_head(x: Tensor, heads: int) -> Tensor:
    """Repeats key or value heads (B, K, S, D), one for each query head: (B, H, S, D)."""
    return x.repeat_interleave(heads // x.size(1), dim=1)


def dot_product_scores(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """The scores scale q k^T, (..., T, S), with at least the precision of float32."""
    with no_autocast(q):
        return scale * (upcast_to_float32(q) @ upcast_to_float32(k).mT)


def with_bias(scores: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Adds the bias to the scores. The bias is rounded to `dtype`, as on the fused path."""
    return scores if bias is None else scores + bias.to(dtype)


def weighted_sum(
    scores: Tensor, v: Tensor, *, mask: Tensor | None = None, dropout: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Returns the weighted sums (..., T, D) of the values v (..., S, D), in the dtype of v, and the
    weights (..., T, S) before dropout, which are the softmax of the scores (..., T, S)."""
    if mask is None:
        weights = scores.softmax(dim=-1)
    else:
        fully_masked = ~mask.any(dim=-1, keepdim=True)
        weights = scores.masked_fill(~(mask | fully_masked), -math.inf).softmax(dim=-1)
        weights = weights.masked_fill(~mask, 0.0)
    with no_autocast(v):
        outputs = F.dropout(weights, dropout, training=dropout > 0) @ upcast_to_float32(v)
    return outputs.to(v.dtype), weights
