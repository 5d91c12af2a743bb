"""What every position encoding can do.

Shapes: B batch, T tokens or queries, S keys, C embed_dim, H heads, D head_dim.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from headscope.errors import UserError


class Position(nn.Module):
    """How a model that sees a set of tokens learns their order.

    An encoding does one of three things, and leaves the other two as they are here: it adds to the
    embeddings (`forward`), turns queries and keys (`rotate`), or biases the scores (`bias`). One
    encoding serves all layers. `block_size` is the longest text it must know; the queries of
    `rotate` and `bias` are the last of the keys. `start` tokens stand before those that are given:
    a key-value cache has them. A subclass passes the four sizes on.

    Where it acts, it Raises UserError for a text longer than `block_size`.
    """

    rotates = False
    """Whether `rotate` does anything."""

    limit: str | None = None
    """Why a trained model cannot be given a larger `block_size`; None when it can."""

    def __init__(self, *, embed_dim: int, block_size: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.embed_dim = embed_dim
        self.block_size = block_size
        self.heads = heads
        self.head_dim = head_dim

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Position":
        """Move as any module does, but keep what is computed (slopes, sines) in full precision:
        `.bfloat16()` would round it."""
        before = dict(self._buffers)
        super()._apply(fn, recurse)
        for name, buffer in before.items():
            after = self._buffers[name]
            if buffer is not None and after is not None and after.dtype != buffer.dtype:
                self._buffers[name] = buffer.to(after.device)
        return self

    def forward(self, embeddings: Tensor, start: int = 0) -> Tensor:
        """Embeddings (B, T, C) that know where they stand."""
        return embeddings

    def rotate(self, q: Tensor, k: Tensor, start: int = 0) -> tuple[Tensor, Tensor]:
        """Queries (B, H, T, D) and keys (B, K, S, D) that know where they stand."""
        return q, k

    def bias(self, queries: int, keys: int) -> Tensor | None:
        """What is added to the scores, (1 or H, T, S), or None for nothing."""
        return None

    def check_length(self, length: int) -> None:
        if length > self.block_size:
            raise UserError(f"{length} tokens are more than block_size={self.block_size}")


class NoPosition(Position):
    """No encoding at all. A causal model still learns some order from what its mask hides
    (Haviv 2022).

    Parameters: none.
    """


def distances(queries: int, keys: int, device: torch.device | None = None) -> Tensor:
    """How far each key lies before each query, (T, S) int64; below 0 for keys that come later."""
    key = torch.arange(keys, device=device)
    return key[keys - queries :, None] - key
