"""Multi-head attention by the book: single heads side by side.

Shapes: B batch, T queries, S keys, C embed_dim, H heads, D head_dim.
"""

from typing import Any

import torch
from torch import Tensor, nn

from headscope.errors import UserError
from headscope.nn.attention.dot_product import HeadOutputs
from headscope.nn.attention.multi_head import MultiHeadAttention
from headscope.nn.norm import HeadNorm


class StackedHeads(MultiHeadAttention):
    """Independent single heads, each with matrices of its own, concatenated, then `out_proj`.

    It equals `MultiHeadAttention` when the weights are copied, and is slower, since the heads are
    computed one after the other. For reading, and to test by.

    The options are those of `MultiHeadAttention`; each head has gains of its own with `qk_norm`.

    Parameters: 3 H D C of the heads and H D O of `out_proj`; 3 H D more with `qkv_bias`, O with
    `out_bias`, 2 H D with `qk_norm`.

    Raises UserError when `kv_heads` is not `heads`: these heads share no keys.
    """

    def make_projections(self) -> None:
        if self.kv_heads != self.heads:
            raise UserError(
                f"kv_heads={self.kv_heads}: stacked heads, here heads={self.heads}, share no keys; "
                "model/attention=grouped_query does"
            )
        self.stack = nn.ModuleList(
            Head(self.embed_dim, self.head_dim, bias=self.qkv_bias, qk_norm=self.qk_norm)
            for _ in range(self.heads)
        )

    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of every head, (B, H, T or S, D) each."""
        projected = [head(query, key, value) for head in self.stack]
        q, k, v = (torch.stack(parts, dim=1) for parts in zip(*projected, strict=True))
        return q, k, v

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        mask: Tensor | None,
        bias: Tensor | None,
        **options: Any,
    ) -> HeadOutputs:
        """As in `MultiHeadAttention`, head by head."""
        heads = [
            super(StackedHeads, self).attend(
                q[:, [head]],
                k[:, [head]],
                v[:, [head]],
                mask=mask if mask is None or mask.dim() == 2 else of_head(mask, 1, head),
                bias=None if bias is None else of_head(bias, 0, head),
                **options,
            )
            for head in range(self.heads)
        ]
        outputs, weights, scores = zip(*heads, strict=True)
        if not options["explicit"]:
            return HeadOutputs(torch.cat(outputs, dim=1))
        return HeadOutputs(*(torch.cat(parts, dim=1) for parts in (outputs, weights, scores)))


def of_head(x: Tensor, axis: int, head: int) -> Tensor:
    """The part of x that is for one head; an axis of size 1 serves all heads."""
    return x if x.size(axis) == 1 else x.narrow(axis, head, 1)


class Head(nn.Module):
    """The query, key and value matrices of one head, and its norms with `qk_norm`."""

    def __init__(self, embed_dim: int, head_dim: int, *, bias: bool, qk_norm: bool) -> None:
        super().__init__()
        self.query = nn.Linear(embed_dim, head_dim, bias=bias)
        self.key = nn.Linear(embed_dim, head_dim, bias=bias)
        self.value = nn.Linear(embed_dim, head_dim, bias=bias)
        self.q_norm = HeadNorm(head_dim) if qk_norm else nn.Identity()
        self.k_norm = HeadNorm(head_dim) if qk_norm else nn.Identity()

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, T, D), keys and values (B, S, D)."""
        return self.q_norm(self.query(query)), self.k_norm(self.key(key)), self.value(value)
