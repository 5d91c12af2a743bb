"""Multi-head attention as independent single heads, as in textbooks.

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
    """Multi-head attention as independent single heads. Each head has its own projection matrices.
    The outputs of the heads are concatenated, then projected by `out_proj`.

    With the same weights, the result equals that of `MultiHeadAttention`. This class is slower,
    because it computes the heads one after another. It is meant for reading and for tests.

    The options are the same as in `MultiHeadAttention`. With `qk_norm`, each head learns its own
    gains.

    Parameters: 3 H D C for the heads, and H D O for `out_proj`. The options add 3 H D with
    `qkv_bias`, O with `out_bias`, and 2 H D with `qk_norm`.

    Raises UserError when `kv_heads` is not `heads`, because the heads of this class do not share
    keys.
    """

    def make_projections(self) -> None:
        if self.kv_heads != self.heads:
            raise UserError(
                f"kv_heads={self.kv_heads}: in stacked_heads it must equal heads={self.heads}; "
                "remove it, or set model/attention=grouped_query, where query heads share keys"
            )
        self.stack = nn.ModuleList(
            Head(self.embed_dim, self.head_dim, bias=self.qkv_bias, qk_norm=self.qk_norm)
            for _ in range(self.heads)
        )

    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Projects the inputs to queries (B, H, T, D), keys (B, H, S, D) and values
        (B, H, S, D)."""
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
        """Like `MultiHeadAttention.attend`, but computes one head at a time."""
        heads = [
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
        outputs, weights, scores = zip(*heads, strict=True)
        if not options["explicit"]:
            return HeadOutputs(torch.cat(outputs, dim=1))
        return HeadOutputs(*(torch.cat(parts, dim=1) for parts in (outputs, weights, scores)))


def slice_head(x: Tensor, axis: int, head: int) -> Tensor:
    """The slice of x for one head. If the axis has size 1, all heads share the same slice."""
    return x if x.size(axis) == 1 else x.narrow(axis, head, 1)


class Head(nn.Module):
    """The query, key and value projections of one head and, with `qk_norm`, the norms of its
    queries and keys."""

    def __init__(self, embed_dim: int, head_dim: int, *, bias: bool, qk_norm: bool) -> None:
        super().__init__()
        self.query = nn.Linear(embed_dim, head_dim, bias=bias)
        self.key = nn.Linear(embed_dim, head_dim, bias=bias)
        self.value = nn.Linear(embed_dim, head_dim, bias=bias)
        self.q_norm = HeadNorm(head_dim) if qk_norm else nn.Identity()
        self.k_norm = HeadNorm(head_dim) if qk_norm else nn.Identity()

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Projects the inputs to queries (B, T, D), keys (B, S, D) and values (B, S, D)."""
        return self.q_norm(self.query(query)), self.k_norm(self.key(key)), self.value(value)
