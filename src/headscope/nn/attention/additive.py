"""Additive attention, the score function that came before the dot product.

Shapes: B batch, T queries, S keys, H heads, K kv heads (divides H), D head_dim.
"""

from typing import Any

import torch
from torch import Tensor, nn

from headscope.errors import UserError
from headscope.nn.attention.dot_product import (
    HeadOutputs,
    one_per_query_head,
    weighted_sum,
    with_bias,
)
from headscope.nn.attention.masks import combine
from headscope.nn.attention.multi_head import MultiHeadAttention
from headscope.nn.position import Position
from headscope.nn.precision import no_autocast, upcast_to_float32


class AdditiveAttention(MultiHeadAttention):
    """Scores a query and a key by a small network, w . tanh(q + k), instead of their dot product
    (Bahdanau 2014, appendix A.1.2), with a vector w of its own in every head.

    The projections into q, k and v, and the way out, are those of `MultiHeadAttention`. There is no
    fused kernel, and tanh makes H T S D numbers where the dot product makes H T S: it is slow, and
    here for reading and comparison.

    The options are those of `MultiHeadAttention`; `scale` is 1 unless given, as the paper has none.

    Parameters: those of `MultiHeadAttention`, and H D more of w.
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
        """As in `MultiHeadAttention`. There is no fused kernel: weights and scores are computed
        also without `explicit`."""
        k, v = one_per_query_head(k, self.heads), one_per_query_head(v, self.heads)
        q32, k32 = upcast_to_float32(q), upcast_to_float32(k)
        hidden = torch.tanh(q32[:, :, :, None] + k32[:, :, None])  # (B, H, T, S, D)
        with no_autocast(q):
            scores = torch.einsum("bhtsd,hd->bhts", hidden, upcast_to_float32(self.w))
        scores = with_bias(self.scale * scores, bias, q.dtype)
        visible = combine(self.causal_rows(q.size(2), k.size(2)), mask)
        outputs, weights = weighted_sum(scores, v, mask=visible, dropout=dropout)
        return HeadOutputs(outputs, weights, scores)

    def check_position(self, position: Position) -> None:
        if position.rotates:
            raise UserError(
                "model/position=rotary turns queries and keys so that their dot product tells "
                "their distance; model/attention=additive takes no dot product"
            )
