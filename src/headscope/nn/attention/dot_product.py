"""Dot-product attention, in two implementations.

Shapes: B batch, T queries, S keys, H heads, K kv heads (divides H), D head_dim.

- The fused path calls PyTorch's `scaled_dot_product_attention`, whose kernels do not return the
  weights. Training uses the fused path. `attend_fused` supports masks, biases and grouped heads;
  without them, `MultiHeadAttention.attend` calls PyTorch directly. In compiled code on a GPU, masks
  per sequence use `headscope.nn.attention.blocks` instead.
- The explicit path, `attend_explicit`, computes every step of the equation and returns weights and
  scores. Analysis uses the explicit path. Tests compare the two paths.
- `scaled_dot_product` computes the same equation without a layer.

Arguments of `attend_fused` and `attend_explicit`:

- q (B, H, T, D), k and v (B, K, S, D). Each key head serves H / K consecutive query heads.
- `causal` (T, S) is the causal mask, with the queries aligned to the last keys. `mask` is an
  additional mask (see `headscope.nn.attention.masks`). A mask is True where a query may look at a
  key; None hides nothing. If both masks are given, a query may look only where both are True.
- `bias` (1 or H, T, S) is added to the scores; None adds nothing. Both paths round the bias to the
  dtype of q, because CUDA kernels require this. In bf16, the bias keeps 8 significant bits.
- `scale` multiplies q k^T. `dropout` is the probability that a weight is set to zero.

If a query may look at no key, its output and weights are zero.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from headscope.errors import UserError
from headscope.nn.attention.blocks import attend_skipping_blocks, can_skip_blocks
from headscope.nn.attention.masks import combine_masks
from headscope.nn.precision import no_autocast, upcast_to_float32


class HeadOutputs(NamedTuple):
    """The results of all heads. `outputs` are the weighted sums of the values, before `out_proj`.

    `weights` (B, H, T, S) are the weights after softmax and before dropout. `scores` (B, H, T, S)
    are the scores before masks and softmax. The scores are scaled and include the position's bias.
    Weights and scores have at least the precision of float32. On the fused path, both are None.
    """

    outputs: Tensor
    weights: Tensor | None = None
    scores: Tensor | None = None

    def without_batch(self) -> "HeadOutputs":
        """The same results without the batch axis. The batch must contain a single sequence."""
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
    """Returns the outputs softmax(scale q k^T) v and the weights softmax(scale q k^T)
    (Vaswani 2017, equation 1).

    For q (..., T, D), k (..., S, D) and v (..., S, E), the outputs (..., T, E) have the dtype of v.
    The weights (..., T, S) have at least the precision of float32. The axes before the last two,
    such as batch and heads, are broadcast. The boolean `mask` is broadcast to (..., T, S) and is
    True where a query may look at a key. If a query may look at no key, its outputs and weights are
    zero. `scale` defaults to 1 / sqrt(D).

    >>> q = k = v = torch.eye(2)
    >>> outputs, weights = scaled_dot_product(q, k, v, mask=torch.ones(2, 2).tril().bool(), scale=1)
    >>> weights
    tensor([[1.0000, 0.0000],
            [0.2689, 0.7311]])

    Raises UserError when shapes or dtypes do not fit.
    """
    _check_arguments(q, k, v, mask)
    scale = 1 / math.sqrt(q.size(-1)) if scale is None else scale
    return weighted_sum(dot_product_scores(q, k, scale), v, mask=mask)


def _check_arguments(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> None:
    parts = {"q": q, "k": k, "v": v}
    for name, part in parts.items():
        if part.dim() < 2 or 0 in part.shape or not part.is_floating_point():
            raise UserError(
                f"{name} is {part.dtype} of shape {tuple(part.shape)}: give a non-empty "
                "floating-point tensor of shape (..., tokens, width)"
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
        mask_shape = "" if mask is None else f", mask {tuple(mask.shape)}"
        raise UserError(
            f"{shapes}{mask_shape}: axes before the last two must be equal or 1, and a mask must "
            "broadcast to (..., T, S)"
        ) from None


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
    """Computes softmax(scale q k^T + bias) v with PyTorch's fused kernels. The result has shape
    (B, H, T, D)."""
    if mask is not None and bias is None and can_skip_blocks(q, mask, dropout=dropout):
        return HeadOutputs(attend_skipping_blocks(q, k, v, causal, mask, scale=scale))
    is_causal = causal is not None and mask is None and bias is None and q.size(2) == k.size(2)
    visible = None if is_causal else combine_masks(causal, mask)
    fully_masked = None
    if visible is not None and mask is not None:
        fully_masked = ~visible.any(dim=-1, keepdim=True)
        visible = visible | fully_masked  # avoids NaN; these outputs are set to zero below
    attn_mask = visible
    if bias is not None:
        attn_mask = bias[None].to(q.dtype)
        if visible is not None:
            attn_mask = attn_mask.masked_fill(~visible, -math.inf)
    if attn_mask is not None and attn_mask.stride(-1) != 1:
        attn_mask = attn_mask.contiguous()  # required by CUDA's fused kernels
    grouped = k.size(1) < q.size(1)
    if grouped and not supports_grouped(q.device.type, q.dtype, masked=attn_mask is not None):
        k, v = one_per_query_head(k, q.size(1)), one_per_query_head(v, q.size(1))
    outputs = F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=attn_mask,
        dropout_p=dropout,
        is_causal=is_causal,
        scale=scale,
        enable_gqa=k.size(1) < q.size(1),
    )
    return HeadOutputs(outputs if fully_masked is None else outputs.masked_fill(fully_masked, 0.0))


def supports_grouped(device: str, dtype: torch.dtype, *, masked: bool) -> bool:
    """Whether a fused kernel supports grouped heads (`enable_gqa`), where a key head serves several
    query heads.

    On CUDA, only flash attention supports grouped heads, and only in 16 bits and without a mask.
    The memory-efficient kernel supports masks and float32, but needs one key head per query head.
    If no kernel fits, PyTorch uses the math path, whose memory grows with T x S. Repeating the keys
    and values needs far less memory than the math path. All these kernels support dropout.
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
    """Repeats key or value heads, so that each query head has one: (B, K, S, D) becomes
    (B, H, S, D)."""
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
    """Computes the weights (..., T, S), which are the softmax of the scores (..., T, S), and the
    weighted sums (..., T, D) of the values v (..., S, D). Returns the weighted sums in the dtype of
    v, and the weights before dropout."""
    if mask is None:
        weights = scores.softmax(dim=-1)
    else:
        fully_masked = ~mask.any(dim=-1, keepdim=True)
        weights = scores.masked_fill(~(mask | fully_masked), -math.inf).softmax(dim=-1)
        weights = weights.masked_fill(~mask, 0.0)
    with no_autocast(v):
        outputs = F.dropout(weights, dropout, training=dropout > 0) @ upcast_to_float32(v)
    return outputs.to(v.dtype), weights
