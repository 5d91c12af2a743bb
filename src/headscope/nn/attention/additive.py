"""Additive attention, which computes scores with a tanh instead of a dot product.

Shapes: B batch, T queries, S keys, H heads, K kv heads (divides H), D head_dim.
"""

from typing import Any

import torch
from torch import Tensor, nn

from headscope.nn.attention.dot_product import (
    HeadOutputs,
    one_per_query_head,
    weighted_sum,
    with_bias,
)
from headscope.nn.attention.masks import combine_masks
from headscope.nn.attention.multi_head import MultiHeadAttention
from headscope.nn.precision import no_autocast, upcast_to_float32


class AdditiveAttention(MultiHeadAttention):
    """Attention in which the score of a query q and a key k is w . tanh(q + k), instead of their
    dot product (Bahdanau 2014, appendix A.1.2). Every head learns a vector w.

    The projections are the same as in `MultiHeadAttention`. This variant is meant for study and
    comparison. It is slow: there is no fused kernel, and the tanh has H T S D results, while a dot
    product has only H T S results.

    With rotary positions, the score of a query and a key depends on both positions, and not only on
    their distance, because tanh(q + k) changes when both are rotated by the same angle.

    The options are the same as in `MultiHeadAttention`, but `scale` defaults to 1, because the
    paper does not scale the scores.

    Parameters: the parameters of `MultiHeadAttention`, and H D for w.
    """

    def __init__(self, *, scale: float | None = None, **options: Any) -> None:
        super().__init__(scale=1.0 if scale is None else scale, **options)
        self.w = nn.Parameter(torch.empty(self.heads, self.head_dim))
        nn.init.normal_(self.w, std=self.head_dim**-0.5)

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        mask: Tensor | None,
        bias: Tensor | None,
        dropout: float,
        explicit: bool,
    ) -> HeadOutputs:
        """Like `MultiHeadAttention.attend`, but always returns weights and scores, because there is
        no fused kernel."""
        k, v = one_per_query_head(k, self.heads), one_per_query_head(v, self.heads)
        q32, k32 = upcast_to_float32(q), upcast_to_float32(k)
        hidden = torch.tanh(q32[:, :, :, None] + k32[:, :, None])  # (B, H, T, S, D)
        with no_autocast(q):
            scores = torch.einsum("bhtsd,hd->bhts", hidden, upcast_to_float32(self.w))
        scores = with_bias(self.scale * scores, bias, q.dtype)
        visible = combine_masks(self.causal_rows(q.size(2), k.size(2)), mask)
        outputs, weights = weighted_sum(scores, v, mask=visible, dropout=dropout)
        return HeadOutputs(outputs, weights, scores)
