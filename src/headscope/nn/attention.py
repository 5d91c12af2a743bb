"""Multi-head, multi-query, grouped-query and single-head attention, in one class.

Shapes: B batch, T queries, S keys, C embed_dim, O out_dim, H heads, K kv heads, D head_dim.
"""

import math
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headscope.errors import UserError
from headscope.nn.cache import Past
from headscope.nn.checks import check_alignment, check_kv_heads, check_sizes, resolve_head_dim
from headscope.nn.dot_product import HeadOutputs, attend_explicit, attend_fused
from headscope.nn.masks import check_mask, combine_masks
from headscope.nn.norm import HeadNorm
from headscope.nn.position.base import Position


class MultiHeadAttention(nn.Module):
    """In every head, each query returns a weighted sum of the values (Vaswani 2017, 3.2.2).

    `heads=1` is single-head attention. `kv_heads=heads` is multi-head attention, `kv_heads=1` is
    multi-query (Shazeer 2019), and a value in between is grouped-query (Ainslie 2023).

    - `embed_dim` is the input width, `out_dim` the output width (default: `embed_dim`).
    - `kv_heads` defaults to `heads`, and `head_dim` to `embed_dim` / `heads`.
    - `causal`: a query sees only its own and earlier tokens. Then `block_size`, the maximum number
      of keys, is needed.
    - `layer_window`: of these, a query sees only so many, the last ones (Beltagy 2020).
    - `dropout` applies to weights in training. `scale` multiplies scores (default: 1 / sqrt(D)).
    - `qkv_bias`, `out_bias`: add biases. `qk_norm`: apply RMSNorm to queries and keys (Henry 2020).
    - If `out_proj` is false, the output is the concatenated heads, and `out_dim` must be H D.

    Parameters: (H + 2 K) D C for queries, keys and values, and H D O for `out_proj`. The options
    add (H + 2 K) D with `qkv_bias`, O with `out_bias`, and 2 D with `qk_norm`. Raises UserError
    when the sizes contradict one another.
    """

    mask: Tensor | None

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
        layer_window: int | None = None,
        dropout: float = 0.0,
        scale: float | None = None,
        qkv_bias: bool = False,
        qk_norm: bool = False,
        out_proj: bool = True,
        out_bias: bool = False,
    ) -> None:
        super().__init__()
        self.embed_dim, self.heads = embed_dim, heads
        self.kv_heads = heads if kv_heads is None else kv_heads
        self.head_dim = resolve_head_dim(embed_dim=embed_dim, heads=heads, head_dim=head_dim)
        self.out_dim = embed_dim if out_dim is None else out_dim
        self.dropout = dropout
        self.scale = 1 / math.sqrt(self.head_dim) if scale is None else scale
        self.qkv_bias, self.qk_norm, self.out_bias = qkv_bias, qk_norm, out_bias
        self.has_out_proj = out_proj
        self.layer_window = layer_window
        check_sizes(self, block_size=block_size, causal=causal)
        mask = self.causal_mask(block_size) if causal and block_size else None
        self.register_buffer("mask", mask, persistent=False)
        self.make_projections()
        self.out_proj: nn.Module = nn.Identity()
        if out_proj:
            self.out_proj = nn.Linear(heads * self.head_dim, self.out_dim, bias=out_bias)

    def make_projections(self) -> None:
        """Creates the modules that `project` uses."""
        self.widths = [n * self.head_dim for n in (self.heads, self.kv_heads, self.kv_heads)]
        self.qkv = nn.Linear(self.embed_dim, sum(self.widths), bias=self.qkv_bias)
        norm = partial(HeadNorm, self.head_dim) if self.qk_norm else nn.Identity
        self.q_norm, self.k_norm = norm(), norm()

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
    ) -> Tensor | tuple[Tensor, Tensor | None]:
        """Maps `query` (B, T, C) to outputs (B, T, O). If `weights`, also returns the weights
        (B, H, T, S) after softmax and before dropout. The batch axis is optional in all shapes.

        `key` (B, S, C) defaults to `query` (self-attention), `value` (B, S, C) defaults to `key`.
        `mask` is True where a query may look (shapes: `headscope.nn.masks`). `position` rotates
        queries and keys, or biases the scores. `past` holds the keys and values of earlier tokens.
        The new keys and values are appended, and S counts all keys. Queries are aligned to the last
        keys. Raises UserError if a sequence is too long, or if the mask has a wrong shape.
        """
        inputs: Any = {"mask": mask, "position": position, "past": past, "explicit": weights}
        dropout = self.dropout if self.training else 0.0
        computed = self.compute_heads(query, key, value, dropout=dropout, **inputs)
        outputs = self.out_proj(computed.outputs)
        return (outputs, computed.weights) if weights else outputs

    def compute_heads(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        position: Position | None = None,
        past: Past | None = None,
        dropout: float = 0.0,
        explicit: bool = True,
    ) -> HeadOutputs:
        """Like `forward`, but returns the concatenated outputs of the heads (B, T, H D), before
        `out_proj`. If `explicit`, also returns the weights and raw scores (B, H, T, S)."""
        key = query if key is None else key
        value = key if value is None else value
        batched = query.dim() == 3
        if not batched:
            query, key, value = query[None], key[None], value[None]
        q, k, v = self.project(query, key, value)
        one_batch = q.dim() == k.dim() == v.dim() == 4 and q.size(0) == k.size(0) == v.size(0)
        if not one_batch or k.size(2) != v.size(2):
            # PyTorch's fused kernel would broadcast the batch, and read values that do not exist.
            shapes = ", ".join(str(tuple(x.shape)) for x in (query, key, value))
            advice = "give one batch, and one value for each key"
            raise UserError(f"queries, keys and values have the shapes {shapes}: {advice}")
        if position is not None:
            q, k = position.rotate(q, k, 0 if past is None else past.length)
        if past is not None:
            k, v = past.extend(k, v)
        sizes = {"queries": q.size(2), "keys": k.size(2)}
        if mask is not None:
            check_mask(mask, batch=q.size(0), heads=self.heads, **sizes)
        bias = None if position is None else position.bias(**sizes)
        computed = self.attend(q, k, v, mask=mask, bias=bias, dropout=dropout, explicit=explicit)
        outputs = computed.outputs.transpose(1, 2).flatten(2)
        computed = HeadOutputs(outputs, computed.weights, computed.scores)
        if batched:
            return computed
        return HeadOutputs._make(None if x is None else x[0] for x in computed)

    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Projects to queries (B, H, T, D), keys (B, K, S, D) and values (B, K, S, D)."""
        if key is query and value is query:  # one large product is faster than three
            heads = (self.heads, self.kv_heads, self.kv_heads)
            q, k, v = self.split(self.qkv(query)).split(heads, dim=1)
        else:
            matrices = self.qkv.weight.split(self.widths)
            biases = self.qkv.bias.split(self.widths) if self.qkv_bias else (None, None, None)
            q, k, v = map(self.split, map(F.linear, (query, key, value), matrices, biases))
        return self.q_norm(q), self.k_norm(k), v

    def projections(self, kind: str = "weight") -> tuple[Tensor, ...]:
        """The weights that project to queries (H, D, C), keys (K, D, C) and values (K, D, C), or
        with "bias" the biases (H, D), (K, D) and (K, D)."""
        rows = self.qkv.get_parameter(kind).unflatten(0, (-1, self.head_dim))
        return rows.split((self.heads, self.kv_heads, self.kv_heads))

    def own_weights(self, heads: Sequence[int]) -> list[Tensor]:
        """Views of the weights that only these heads use, also their columns of `out_proj`."""
        views = self.own_projections(heads)
        if self.has_out_proj:
            columns = self.out_proj.get_parameter("weight").unflatten(1, (self.heads, -1))
            views += [columns[:, head] for head in heads]  # (O, D)
        return views

    def own_projections(self, heads: Sequence[int]) -> list[Tensor]:
        """Views of the rows that project to the queries of these heads, and to their keys and
        values if no other head shares them. Raises UserError if a class projects in its own way."""
        if type(self).project is not MultiHeadAttention.project:
            raise UserError(f"{type(self).__name__} does not say which weights belong to a head")
        group = self.heads // self.kv_heads
        counts = Counter(head // group for head in heads)
        whole = [n for n, count in counts.items() if count == group]
        views = []
        for kind in ("weight", "bias") if self.qkv_bias else ("weight",):
            q, k, v = self.projections(kind)
            views += [*(q[head] for head in heads), *(x[n] for n in whole for x in (k, v))]
        return views

    def split(self, x: Tensor) -> Tensor:
        """Splits concatenated heads (B, T, H D) into (B, H, T, D)."""
        return x.view(x.size(0), x.size(1), -1, self.head_dim).transpose(1, 2)

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
        """Computes softmax(scale q k^T + bias) v, (B, H, T, D), on the explicit or fused path."""
        causal = self.causal_rows(q.size(2), k.size(2))
        if self.layer_window is not None:  # fused kernels take `causal` for the plain causal mask
            causal, mask = None, combine_masks(causal, mask)
        compute = attend_explicit if explicit else attend_fused
        return compute(q, k, v, causal, mask, bias, scale=self.scale, dropout=dropout)

    def causal_mask(self, block_size: int) -> Tensor:
        """The causal mask (block_size, block_size), with the window."""
        mask = torch.ones(block_size, block_size, dtype=torch.bool).tril()
        return mask if self.layer_window is None else mask.triu(1 - self.layer_window)

    def causal_rows(self, queries: int, keys: int) -> Tensor | None:
        """The causal mask (T, S) for the last T of S positions, with the window. None if it hides
        nothing."""
        mask = self.mask  # read once, because a buffer is slow to read
        if mask is None:
            return None
        check_alignment(queries, keys, mask.size(0))
        return mask[keys - queries : keys, :keys] if queries > 1 or self.layer_window else None


class MultiHead(MultiHeadAttention):
    """Attention with one key head per query head (Vaswani 2017)."""

    def __init__(self, *, heads: int, kv_heads: int | None = None, **options: Any) -> None:
        check_kv_heads("multi_head", kv_heads=kv_heads, heads=heads, only=heads)
        super().__init__(heads=heads, **options)
