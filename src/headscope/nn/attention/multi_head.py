"""Multi-head attention, and its variants with fewer key heads, in one class.

Shapes: B batch, T queries, S keys, C embed_dim, H heads, K kv heads (divides H), D head_dim,
O out_dim.
"""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headscope.errors import UserError
from headscope.nn.attention.checks import check_inputs, check_sizes, head_width
from headscope.nn.attention.dot_product import HeadOutputs, attend_explicit, attend_masked
from headscope.nn.cache import Past
from headscope.nn.norm import HeadNorm
from headscope.nn.position import Position


class MultiHeadAttention(nn.Module):
    """Project, split into heads, attend, merge, project back (Vaswani 2017, 3.2.2).

    One head is single-head attention. `kv_heads` = `heads` is multi-head, 1 is multi-query (Shazeer
    2019), between is grouped-query attention (Ainslie 2023).

    - `embed_dim`, width of the input; `out_dim`, width of the output, `embed_dim` unless given;
    - `heads`; `kv_heads`, `heads` unless given; `head_dim`, `embed_dim` / `heads` unless given;
    - `causal`: a query sees its own token and earlier ones, of at most `block_size` tokens;
    - `dropout` of weights in training; `scale` of scores, 1 / sqrt(head_dim) unless given;
    - `qkv_bias`, `out_bias`; `qk_norm`, RMSNorm of every query and key (Henry 2020);
    - `out_proj`: without it the output is the heads side by side, and `out_dim` their width.

    Parameters: (H + 2 K) D C of queries, keys and values, and H D O of `out_proj`; (H + 2 K) D more
    with `qkv_bias`, O with `out_bias`, 2 D with `qk_norm`.

    Raises UserError when the sizes do not fit together.
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
        self.head_dim = head_width(embed_dim=embed_dim, heads=heads, head_dim=head_dim)
        self.out_dim = embed_dim if out_dim is None else out_dim
        self.dropout = dropout
        self.scale = self.head_dim**-0.5 if scale is None else scale
        self.qkv_bias, self.qk_norm, self.out_bias = qkv_bias, qk_norm, out_bias
        self.has_out_proj = out_proj
        check_sizes(self, block_size=block_size, causal=causal)
        mask = torch.ones(block_size or 0, block_size or 0, dtype=torch.bool).tril()
        self.register_buffer("mask", mask if causal else None, persistent=False)
        self.make_projections()
        self.out_proj: nn.Module = nn.Identity()
        if out_proj:
            self.out_proj = nn.Linear(heads * self.head_dim, self.out_dim, bias=out_bias)

    def make_projections(self) -> None:
        """Create what `project` uses."""
        self.widths = [n * self.head_dim for n in (self.heads, self.kv_heads, self.kv_heads)]
        self.qkv = nn.Linear(self.embed_dim, sum(self.widths), bias=self.qkv_bias)
        norm = partial(HeadNorm, self.head_dim) if self.qk_norm else nn.Identity
        self.q_norm, self.k_norm = norm(), norm()

    def forward(self, *inputs: Tensor, weights: bool = False, **options: Any) -> Any:
        """query (B, T, C) to (B, T, O); with `weights` also the weights (B, H, T, S) after softmax,
        before dropout. Arguments and errors are those of `compute_heads`."""
        dropout = self.dropout if self.training else 0.0
        computed = self.compute_heads(*inputs, dropout=dropout, explicit=weights, **options)
        out = self.out_proj(computed.outputs)
        return (out, computed.weights) if weights else out

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
        """The heads' outputs side by side (B, T, H D) and, with `explicit`, weights and raw scores
        (B, H, T, S) in at least float32. All shapes may lack the batch axis.

        `key` (B, S, C) is `query` unless given, and `value` (B, S, C) is `key`: one tensor is
        self-attention, two or three are cross-attention. `mask` is True where a query may look; see
        `headscope.nn.attention.masks` for its shapes. `position` rotates queries and keys, or
        biases the scores. `past` holds keys and values of earlier tokens: new ones are appended,
        and S counts all. Queries are aligned to the last keys.

        Raises UserError when a text is longer than `block_size`, or shapes or dtypes do not fit.
        """
        batched = query.dim() == 3
        plain = batched and key is None and value is None and mask is None and query.numel()
        key = query if key is None else key
        value = key if value is None else value
        if not plain or query.size(-1) != self.embed_dim or not query.is_floating_point():
            check_inputs(self, query, key, value, mask=mask, position=position, past=past)
        if not batched:
            query, key, value = query[None], key[None], value[None]
        q, k, v = self.project(query, key, value)
        if position is not None:
            self.check_position(position)
            q, k = position.rotate(q, k, 0 if past is None else past.length)
        if past is not None:
            k, v = past.extend(k, v)
        bias = None if position is None else position.bias(q.size(2), k.size(2))
        computed = self.attend(q, k, v, mask=mask, bias=bias, dropout=dropout, explicit=explicit)
        outputs = computed.outputs.transpose(1, 2).flatten(2)
        computed = HeadOutputs(outputs, computed.weights, computed.scores)
        return computed if batched else computed.without_batch()

    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, H, T, D), keys and values (B, K, S, D)."""
        if key is query and value is query:  # one large product is faster than three
            heads = (self.heads, self.kv_heads, self.kv_heads)
            q, k, v = self.split(self.qkv(query)).split(heads, dim=1)
        else:
            matrices = self.qkv.weight.split(self.widths)
            biases = self.qkv.bias.split(self.widths) if self.qkv_bias else (None, None, None)
            q, k, v = map(self.split, map(F.linear, (query, key, value), matrices, biases))
        return self.q_norm(q), self.k_norm(k), v

    def split(self, x: Tensor) -> Tensor:
        """Heads side by side (B, T, H D) as (B, H, T, D)."""
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
        """softmax(scale q k^T + bias) v, (B, H, T, D); with `explicit` also weights and scores."""
        causal = self.causal_rows(q.size(2), k.size(2))
        aligned = causal is None or q.size(2) == k.size(2)  # as `is_causal` of the kernel wants it
        if explicit or mask is not None or bias is not None or not aligned:
            compute = attend_explicit if explicit else attend_masked
            return compute(q, k, v, causal, mask, bias, scale=self.scale, dropout=dropout)
        sdpa: Any = partial(F.scaled_dot_product_attention, enable_gqa=self.kv_heads < self.heads)
        is_causal = causal is not None
        return HeadOutputs(sdpa(q, k, v, is_causal=is_causal, scale=self.scale, dropout_p=dropout))

    def causal_rows(self, queries: int, keys: int) -> Tensor | None:
        """The rows (T, S) of the causal mask for queries that are the last of the keys."""
        if self.mask is None:
            return None
        if keys > self.mask.size(0):
            raise UserError(f"{keys} tokens are more than block_size={self.mask.size(0)}")
        return None if queries == 1 else self.mask[keys - queries : keys, :keys]

    def check_position(self, position: Position) -> None:
        """Raises UserError when this attention cannot use `position`."""
