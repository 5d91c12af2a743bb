"""What every attention has: its inputs, its masks, and its way out.

Shapes: B batch, T queries, S keys, C embed_dim, H heads, K kv heads, D head_dim, O out_dim.
"""

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from headscope.errors import UserError
from headscope.nn.attention.dot_product import HeadOutputs
from headscope.nn.attention.masks import check_mask
from headscope.nn.cache import Past
from headscope.nn.position import Position


def head_width(*, embed_dim: int, heads: int, head_dim: int | None) -> int:
    """Width of one head: `head_dim`, or an equal share of `embed_dim`.

    Raises UserError when it is below 1, or the heads do not divide the width they should share.
    """
    if heads < 1:
        raise UserError(f"heads={heads} must be at least 1")
    if head_dim is not None:
        if head_dim < 1:
            raise UserError(f"head_dim={head_dim} must be at least 1")
        return head_dim
    if embed_dim % heads:
        raise UserError(
            f"embed_dim={embed_dim} must be a multiple of heads={heads}, or head_dim be given: "
            "every head takes an equal share of the width"
        )
    return embed_dim // heads


def check_inputs(query: Tensor, key: Tensor, value: Tensor, *, embed_dim: int) -> None:
    """Raises UserError when they are not floating-point numbers (B, T, C), (B, S, C) and (B, S, C),
    or all without B, or when one is empty."""
    fits = (
        query.dim() in (2, 3)
        and query.dim() == key.dim() == value.dim()
        and query.shape[:-2] == key.shape[:-2]
        and key.shape[:-1] == value.shape[:-1]
        and query.size(-1) == key.size(-1) == value.size(-1) == embed_dim
        and query.numel() > 0
        and key.numel() > 0
        and query.is_floating_point()
        and key.is_floating_point()
        and value.is_floating_point()
    )
    if not fits:
        parts = (query, key, value)
        shapes = ", ".join(str(tuple(part.shape)) for part in parts)
        dtypes = ", ".join(str(part.dtype) for part in parts)
        raise UserError(
            f"queries, keys and values of shapes {shapes} and {dtypes} must be floating-point "
            f"numbers (B, T, {embed_dim}), (B, S, {embed_dim}) and (B, S, {embed_dim}), or all "
            "without the batch axis B, and none of them empty"
        )


class HeadNorm(nn.RMSNorm):
    """RMSNorm computed in the number format of its gains; the result has that of the input."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self.weight.dtype)).to(x.dtype)


class Attention(nn.Module, ABC):
    """Each query returns a weighted sum of the values.

    The options of all attentions:

    - `embed_dim`, width of the inputs; `out_dim`, width of the output, `embed_dim` unless given;
    - `heads`, `head_dim`; `kv_heads`, heads of keys and values, `heads` unless given;
    - `causal`: a query sees itself and what is before it, up to `block_size` tokens; where there
      are fewer queries than keys, the queries are the last of them;
    - `dropout` of weights, in training; `scale` of scores, 1 / sqrt(head_dim) unless given;
    - `qkv_bias`, `out_bias`; `qk_norm`, every query and key normalized before they meet (Henry
      2020), here by RMSNorm with a gain for each of the D numbers;
    - `out_proj`: without it the output is the heads side by side, and `out_dim` their width.

    Raises UserError when the sizes do not fit together.
    """

    mask: Tensor | None
    out_proj: nn.Module

    def __init__(
        self,
        *,
        embed_dim: int,
        heads: int,
        block_size: int | None = None,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        out_dim: int | None = None,
        causal: bool = True,
        dropout: float = 0.0,
        scale: float | None = None,
        qkv_bias: bool = False,
        qk_norm: bool = False,
        out_proj: bool = True,
        out_bias: bool = False,
    ) -> None:
        super().__init__()
        sizes = {"embed_dim": embed_dim, "block_size": block_size, "out_dim": out_dim}
        for name, size in sizes.items():
            if size is not None and size < 1:
                raise UserError(f"{name}={size} must be at least 1")
        if not 0 <= dropout < 1:
            raise UserError(f"dropout={dropout} must be at least 0 and below 1")
        self.embed_dim = embed_dim
        self.heads = heads
        self.head_dim = head_width(embed_dim=embed_dim, heads=heads, head_dim=head_dim)
        self.kv_heads = heads if kv_heads is None else kv_heads
        if self.kv_heads < 1 or heads % self.kv_heads:
            raise UserError(
                f"heads={heads} must be a multiple of kv_heads={kv_heads}: every key head serves "
                "as many query heads"
            )
        if scale is not None and not 0 < scale < math.inf:
            raise UserError(f"scale={scale} must be above 0 and finite")
        self.scale = 1 / math.sqrt(self.head_dim) if scale is None else scale
        self.dropout = dropout
        self.qkv_bias = qkv_bias
        self.qk_norm = qk_norm
        self.out_dim = embed_dim if out_dim is None else out_dim
        self.out_bias = out_bias
        self.has_out_proj = out_proj
        if not out_proj and heads * self.head_dim != self.out_dim:
            raise UserError(
                f"without out_proj the output is heads={heads} times head_dim={self.head_dim} "
                f"wide, not {self.out_dim}"
            )
        if causal and block_size is None:
            raise UserError("causal attention needs block_size, the longest text it may see")
        mask = torch.ones(block_size or 0, block_size or 0, dtype=torch.bool).tril()
        self.register_buffer("mask", mask if causal else None, persistent=False)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        position: Position | None = None,
        past: Past | None = None,
        weights: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """query (B, T, C) to (B, T, O); with `weights` also the weights (B, H, T, S) after softmax,
        before dropout, in at least float32.

        `key` (B, S, C) is `query` unless given, and `value` (B, S, C) is `key`: one tensor is
        self-attention, two or three are cross-attention. `mask` is True where a query may look; its
        shapes are those of `headscope.nn.attention.masks`. `position` turns queries and keys, or
        biases the scores. `past` has the keys and values of the tokens before: those of `key` are
        put after them, and S counts all. Without a batch axis, (T, C) becomes (T, O) and (H, T, S).

        Raises UserError when a text is longer than `block_size`, or shapes or dtypes do not fit.
        """
        computed = self._compute(
            query,
            key,
            value,
            mask=mask,
            position=position,
            past=past,
            dropout=self.dropout if self.training else 0.0,
            explicit=weights,
        )
        out = self.out_proj(computed.outputs)
        if not weights:
            return out
        assert computed.weights is not None  # the explicit path has them
        return out, computed.weights

    def explain(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        position: Position | None = None,
        past: Past | None = None,
    ) -> HeadOutputs:
        """What `forward` computes on the way, without dropout: the heads' outputs side by side
        (B, T, H D), weights and raw scores (B, H, T, S).

        The arguments, the shapes without a batch axis and the errors are those of `forward`.
        """
        return self._compute(
            query,
            key,
            value,
            mask=mask,
            position=position,
            past=past,
            dropout=0.0,
            explicit=True,
        )

    def _compute(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        *,
        mask: Tensor | None,
        position: Position | None,
        past: Past | None,
        dropout: float,
        explicit: bool,
    ) -> HeadOutputs:
        """Check the inputs and run `mix`, with or without a batch axis."""
        key = query if key is None else key
        value = key if value is None else value
        check_inputs(query, key, value, embed_dim=self.embed_dim)
        batched = query.dim() == 3
        if not batched:
            query, key, value = query[None], key[None], value[None]
        batch, queries = query.size(0), query.size(1)
        keys = key.size(1) + (0 if past is None else past.length)
        if position is not None:
            self.check_position(position)
        if mask is not None:
            check_mask(mask, batch=batch, heads=self.heads, queries=queries, keys=keys)
        if queries > keys and (self.mask is not None or position is not None):
            raise UserError(
                f"queries ({queries}) must not outnumber keys ({keys}): queries are aligned to the "
                "last keys"
            )
        computed = self.mix(
            query,
            key,
            value,
            causal=self._causal(queries, keys),
            mask=mask,
            position=position,
            past=past,
            dropout=dropout,
            explicit=explicit,
        )
        if batched:
            return computed
        outputs, weights, scores = computed
        return HeadOutputs(
            outputs[0],
            None if weights is None else weights[0],
            None if scores is None else scores[0],
        )

    @abstractmethod
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
        """What every kind of attention computes in its own way: the heads' outputs side by side,
        (B, T, H D), and with `explicit` weights and scores (B, H, T, S)."""

    def make_norm(self) -> nn.Module:
        """What normalizes every query, or every key, with `qk_norm`."""
        return HeadNorm(self.head_dim, eps=1e-6) if self.qk_norm else nn.Identity()

    def make_out_proj(self) -> nn.Module:
        """What maps the heads side by side (H D) to the output (O)."""
        if not self.has_out_proj:
            return nn.Identity()
        return nn.Linear(self.heads * self.head_dim, self.out_dim, bias=self.out_bias)

    def check_position(self, position: Position) -> None:
        """Raises UserError when this attention cannot use `position`."""

    @property
    def cache_width(self) -> int:
        """Numbers that a key-value cache keeps for every token: 2 K D."""
        return 2 * self.kv_heads * self.head_dim

    def _causal(self, queries: int, keys: int) -> Tensor | None:
        """The rows of the mask (T, S) for queries that are the last of the keys."""
        if self.mask is None:
            return None
        if keys > self.mask.size(0):
            raise UserError(f"{keys} tokens are more than block_size={self.mask.size(0)}")
        if queries == 1:
            return None  # the last one sees all
        return self.mask[keys - queries : keys, :keys]
