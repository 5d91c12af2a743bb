"""Multi-head attention and its variants with fewer key heads, in one class.

Shapes: B batch, T queries, S keys, C embed_dim, H heads, K kv heads (divides H), D head_dim,
O out_dim.
"""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from headscope.nn.attention.base import Attention
from headscope.nn.attention.dot_product import HeadOutputs, attend_explicit, attend_fused
from headscope.nn.cache import Past
from headscope.nn.position import Position


class MultiHeadAttention(Attention):
    """Project, split into heads, attend, merge, project back (Vaswani 2017, 3.2.2).

    One head is single-head attention; `kv_heads` equal to `heads` is multi-head, 1 is multi-query
    (Shazeer 2019), between is grouped-query (Ainslie 2023). Keys and values are K D wide: K heads
    as wide as those of the queries. (A version that is often taught makes each key head C // K
    wide; its dot product with a query, C // H wide, does not exist.)

    The options are those of `Attention`.

    Parameters: (H + 2 K) D C of queries, keys and values, and H D O of `out_proj`; (H + 2 K) D more
    with `qkv_bias`, O with `out_bias`, 2 D with `qk_norm`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.widths = [part * self.head_dim for part in (self.heads, self.kv_heads, self.kv_heads)]
        self.qkv = nn.Linear(self.embed_dim, sum(self.widths), bias=self.qkv_bias)
        self.q_norm, self.k_norm = self.make_norm(), self.make_norm()
        self.out_proj = self.make_out_proj()

    def mix(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        causal: Tensor | None,
        mask: Tensor | None,
        position: Position | None,
        past: Past | None,
        dropout: float,
        explicit: bool,
    ) -> HeadOutputs:
        q, k, v = self.project(query, key, value)
        if position is not None:
            q, k = position.rotate(q, k, 0 if past is None else past.length)
        if past is not None:
            k, v = past.extend(k, v)
        bias = None if position is None else position.bias(q.size(2), k.size(2))
        computed = self.attend(
            q,
            k,
            v,
            explicit=explicit,
            causal=causal,
            mask=mask,
            bias=bias,
            scale=self.scale,
            dropout=dropout,
        )
        side_by_side = computed.outputs.transpose(1, 2).flatten(2)  # (B, T, H D)
        return HeadOutputs(side_by_side, computed.weights, computed.scores)

    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, H, T, D), keys and values (B, K, S, D)."""
        if key is query and value is query:  # one large product is faster than three
            heads = (self.heads, self.kv_heads, self.kv_heads)
            q, k, v = self.split(self.qkv(query)).split(heads, dim=1)
        else:
            matrices = self.qkv.weight.split(self.widths)
            biases = self.qkv.bias.split(self.widths) if self.qkv_bias else (None, None, None)
            q, k, v = (
                self.split(F.linear(part, matrix, bias))
                for part, matrix, bias in zip((query, key, value), matrices, biases, strict=True)
            )
        return self.q_norm(q), self.k_norm(k), v

    def split(self, x: Tensor) -> Tensor:
        """Heads side by side (B, T, H D) as (B, H, T, D)."""
        return x.view(x.size(0), x.size(1), -1, self.head_dim).transpose(1, 2)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *, explicit: bool, **options: Any
    ) -> HeadOutputs:
        """The heads' outputs (B, H, T, D); with `explicit` also weights and scores."""
        return (attend_explicit if explicit else attend_fused)(q, k, v, **options)
