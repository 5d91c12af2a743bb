"""Variants of attention: the bare equation, fixed numbers of heads, one head at a time, additive.

Shapes: B batch, T queries, S keys, C embed_dim, H heads, K kv heads (divides H), D head_dim.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headscope.errors import UserError
from headscope.nn.attention import MultiHeadAttention
from headscope.nn.checks import check_kv_heads
from headscope.nn.dot_product import (
    HeadOutputs,
    dot_product_scores,
    one_per_query_head,
    weighted_sum,
    with_bias,
)
from headscope.nn.masks import combine_masks
from headscope.nn.norm import HeadNorm
from headscope.nn.precision import no_autocast, upcast_to_float32


def scaled_dot_product(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """Returns the outputs softmax(scale q k^T) v and the weights softmax(scale q k^T)
    (Vaswani 2017, equation 1), without a layer.

    For q (..., T, D), k (..., S, D) and v (..., S, E), the outputs (..., T, E) have the dtype of v.
    The weights (..., T, S) have at least the precision of float32. The axes before the last two,
    such as batch and heads, are broadcast. The boolean `mask` is broadcast to (..., T, S) and is
    True where a query may look at a key. If a query may look at no key, its outputs and weights are
    zero. `scale` defaults to 1 / sqrt(D).

        >>> q = k = v = torch.eye(2)
        >>> causal = torch.ones(2, 2).tril().bool()
        >>> outputs, weights = scaled_dot_product(q, k, v, mask=causal, scale=1)
        >>> weights
        tensor([[1.0000, 0.0000],
                [0.2689, 0.7311]])

    PyTorch refuses other shapes, and different dtypes.
    """
    scores = dot_product_scores(q, k, 1 / math.sqrt(q.size(-1)) if scale is None else scale)
    # A mask with more axes would silently give more outputs.
    return weighted_sum(scores, v, mask=None if mask is None else mask.expand_as(scores))


class SingleHead(MultiHeadAttention):
    """Attention with a single head, by default as wide as `embed_dim`."""

    def __init__(self, *, heads: int, **options: Any) -> None:
        if heads != 1:
            advice = "set model.heads=1, or model/attention=multi_head"
            raise UserError(f"heads={heads}: single_head has one head; {advice}")
        super().__init__(heads=heads, **options)


class MultiQuery(MultiHeadAttention):
    """Attention with one key head for all query heads (Shazeer 2019)."""

    def __init__(self, *, heads: int, kv_heads: int | None = None, **options: Any) -> None:
        check_kv_heads("multi_query", kv_heads=kv_heads, heads=heads, only=1)
        super().__init__(heads=heads, kv_heads=1, **options)


class GroupedQuery(MultiHeadAttention):
    """Attention with `kv_heads` key heads, each shared by a group of query heads (Ainslie 2023)."""

    def __init__(self, *, kv_heads: int | None = None, **options: Any) -> None:
        if kv_heads is None:
            raise UserError("grouped_query needs kv_heads: give a number that divides heads")
        super().__init__(kv_heads=kv_heads, **options)


class StackedHeads(MultiHeadAttention):
    """Multi-head attention as independent single heads, each with its own projection matrices. The
    outputs of the heads are concatenated, then projected by `out_proj`.

    With the same weights, the result equals that of `MultiHeadAttention`. This class is slower,
    because it computes the heads one after another. It is meant for reading and for tests. The
    options are the same, but with `qk_norm`, each head has its own gains, and no heads share keys.

    Parameters: 3 H D C for the heads, and H D O for `out_proj`. The options add 3 H D with
    `qkv_bias`, O with `out_bias`, and 2 H D with `qk_norm`.
    """

    def make_projections(self) -> None:
        check_kv_heads("stacked_heads", kv_heads=self.kv_heads, heads=self.heads, only=self.heads)
        self.stack = nn.ModuleList(
            Head(self.embed_dim, self.head_dim, bias=self.qkv_bias, qk_norm=self.qk_norm)
            for _ in range(self.heads)
        )

    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Projects to queries (B, H, T, D), keys (B, H, S, D) and values (B, H, S, D)."""
        projected = [head(query, key, value) for head in self.stack]
        q, k, v = (torch.stack(heads, dim=1) for heads in zip(*projected, strict=True))
        return q, k, v

    def projections(self, kind: str = "weight") -> tuple[Tensor, ...]:
        names = (f"{projection}.{kind}" for projection in ("query", "key", "value"))
        return tuple(torch.stack([h.get_parameter(name) for h in self.stack]) for name in names)

    def own_projections(self, heads: Sequence[int]) -> list[Tensor]:
        return [parameter for head in heads for parameter in self.stack[head].parameters()]

    def attend(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> HeadOutputs:
        """Computes one head at a time."""
        mask, bias = options.pop("mask"), options.pop("bias")
        computed = [
            super(StackedHeads, self).attend(
                q[:, [head]],
                k[:, [head]],
                v[:, [head]],
                mask=mask if mask is None or mask.dim() == 2 else slice_head(mask, 1, head),
                bias=None if bias is None else slice_head(bias, 0, head),
                **options,
            )
            for head in range(self.heads)
        ]
        return HeadOutputs._make(
            None if heads[0] is None else torch.cat(heads, dim=1)
            for heads in zip(*computed, strict=True)
        )


def slice_head(x: Tensor, axis: int, head: int) -> Tensor:
    """The slice of x for one head. If the axis has size 1, all heads share the same slice."""
    return x if x.size(axis) == 1 else x.narrow(axis, head, 1)


class Head(nn.Module):
    """The projections of one head and, with `qk_norm`, the norms of its queries and keys."""

    def __init__(self, embed_dim: int, head_dim: int, *, bias: bool, qk_norm: bool) -> None:
        super().__init__()
        linears = (nn.Linear(embed_dim, head_dim, bias=bias) for _ in range(3))
        self.query, self.key, self.value = linears
        self.q_norm = HeadNorm(head_dim) if qk_norm else nn.Identity()
        self.k_norm = HeadNorm(head_dim) if qk_norm else nn.Identity()

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Projects the inputs to queries (B, T, D), keys (B, S, D) and values (B, S, D)."""
        return self.q_norm(self.query(query)), self.k_norm(self.key(key)), self.value(value)


class AdditiveAttention(MultiHeadAttention):
    """Attention in which the score of a query q and a key k is w . tanh(q + k), instead of their
    dot product (Bahdanau 2014, appendix A.1.2). Every head learns a vector w.

    This variant is meant for study and comparison. It is slow: there is no fused kernel, and the
    tanh has H T S D results, while a dot product has only H T S results. With rotary positions, the
    score depends on both positions, and not only on their distance, because tanh(q + k) changes
    when both are rotated by the same angle.

    The options and projections are those of `MultiHeadAttention`, but `scale` defaults to 1, as in
    the paper. Parameters: those of `MultiHeadAttention`, and H D for w.
    """

    def __init__(self, *, scale: float | None = None, **options: Any) -> None:
        super().__init__(scale=1.0 if scale is None else scale, **options)
        self.w = nn.Parameter(torch.empty(self.heads, self.head_dim))
        nn.init.normal_(self.w, std=self.head_dim**-0.5)

    def own_projections(self, heads: Sequence[int]) -> list[Tensor]:
        return [*super().own_projections(heads), *(self.w[head] for head in heads)]

    def attend(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> HeadOutputs:
        """Always returns weights and scores, because there is no fused kernel."""
        k, v = one_per_query_head(k, self.heads), one_per_query_head(v, self.heads)
        q32, k32 = upcast_to_float32(q), upcast_to_float32(k)
        hidden = torch.tanh(q32[:, :, :, None] + k32[:, :, None])  # (B, H, T, S, D)
        with no_autocast(q):
            scores = torch.einsum("bhtsd,hd->bhts", hidden, upcast_to_float32(self.w))
        scores = with_bias(self.scale * scores, options["bias"], q.dtype)
        visible = combine_masks(self.causal_rows(q.size(2), k.size(2)), options["mask"])
        outputs, weights = weighted_sum(scores, v, mask=visible, dropout=options["dropout"])
        return HeadOutputs(outputs, weights, scores)
