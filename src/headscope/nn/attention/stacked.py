"""Multi-head attention by the book: single heads side by side.

Shapes: B batch, T queries, S keys, C embed_dim, H heads, D head_dim, O out_dim.
"""

from typing import Any

import torch
from torch import Tensor, nn

from headscope.errors import UserError
from headscope.nn.attention.base import Attention
from headscope.nn.attention.dot_product import HeadOutputs, attend_explicit, attend_fused
from headscope.nn.cache import Past
from headscope.nn.position import Position


class StackedHeads(Attention):
    """Independent single heads, each with matrices of its own, concatenated, then `out_proj`.

    What `MultiHeadAttention` computes, as textbooks write it: equal to it when the weights are
    copied, and slower, since every head is a step of its own. For reading, and to test by.

    The options are those of `Attention`; each head has its own gains with `qk_norm`.

    Parameters: 3 H D C of the heads and H D O of `out_proj`; 3 H D more with `qkv_bias`, O with
    `out_bias`, 2 H D with `qk_norm`.

    Raises UserError when `kv_heads` is not `heads`: a head by itself shares nothing.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if self.kv_heads != self.heads:
            raise UserError(
                f"kv_heads={self.kv_heads}: stacked heads, here heads={self.heads}, share no keys; "
                "model/attention=grouped_query does"
            )
        self.stack = nn.ModuleList(
            Head(
                embed_dim=self.embed_dim,
                head_dim=self.head_dim,
                bias=self.qkv_bias,
                q_norm=self.make_norm(),
                k_norm=self.make_norm(),
                scale=self.scale,
            )
            for _ in range(self.heads)
        )
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
        keys = key.size(1) + (0 if past is None else past.length)
        bias = None if position is None else position.bias(query.size(1), keys)
        heads = [
            head(
                query,
                key,
                value,
                causal=causal,
                mask=mask if mask is None or mask.dim() == 2 else own_part(mask, 1, number),
                bias=None if bias is None else own_part(bias, 0, number),
                position=position,
                past=None if past is None else past.of_head(number),
                dropout=dropout,
                explicit=explicit,
            )
            for number, head in enumerate(self.stack)
        ]
        outputs = torch.cat([head.outputs for head in heads], dim=-1)
        if not explicit:
            return HeadOutputs(outputs)
        weights, scores = (
            torch.cat(parts, dim=1)
            for parts in zip(*((head.weights, head.scores) for head in heads), strict=True)
        )
        return HeadOutputs(outputs, weights, scores)


def own_part(of_heads: Tensor, axis: int, number: int) -> Tensor:
    """What is for head `number` on the axis of heads, which has one entry where all share it."""
    return of_heads if of_heads.size(axis) == 1 else of_heads.narrow(axis, number, 1)


class Head(nn.Module):
    """One head: softmax(scale Q K^T) V, (B, T, C) to (B, T, D)."""

    def __init__(
        self,
        *,
        embed_dim: int,
        head_dim: int,
        bias: bool,
        q_norm: nn.Module,
        k_norm: nn.Module,
        scale: float,
    ) -> None:
        super().__init__()
        self.query = nn.Linear(embed_dim, head_dim, bias=bias)
        self.key = nn.Linear(embed_dim, head_dim, bias=bias)
        self.value = nn.Linear(embed_dim, head_dim, bias=bias)
        self.q_norm = q_norm
        self.k_norm = k_norm
        self.scale = scale

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        causal: Tensor | None,
        mask: Tensor | None,
        bias: Tensor | None,
        position: Position | None,
        past: Past | None,
        dropout: float,
        explicit: bool,
    ) -> HeadOutputs:
        """The head's outputs (B, T, D); with `explicit` also weights and scores (B, 1, T, S)."""
        q = self.q_norm(self.query(query))[:, None]  # (B, 1, T, D)
        k = self.k_norm(self.key(key))[:, None]  # (B, 1, S, D)
        v = self.value(value)[:, None]
        if position is not None:
            q, k = position.rotate(q, k, 0 if past is None else past.length)
        if past is not None:
            k, v = past.extend(k, v)
        computed = (attend_explicit if explicit else attend_fused)(
            q,
            k,
            v,
            causal=causal,
            mask=mask,
            bias=bias,
            scale=self.scale,
            dropout=dropout,
        )
        return HeadOutputs(computed.outputs[:, 0], computed.weights, computed.scores)
