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

    Where it acts, it raises UserError for a text longer than `block_size`, and for inputs that are
    empty, of another shape, or no floating-point numbers.
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

    def end_of(self, embeddings: Tensor, start: int) -> int:
        """How many tokens the text has after `embeddings` (B, T, C). Raises UserError when they do
        not fit."""
        check_embeddings(embeddings, self.embed_dim)
        end = start + embeddings.size(1)
        self.check_length(end)
        return end

    def check_pairs(self, queries: int, keys: int) -> None:
        """Raises UserError when the queries cannot be the last of the keys."""
        if not 1 <= queries <= keys:
            raise UserError(
                f"queries ({queries}) must be at least 1 and must not outnumber keys ({keys}): "
                "queries are aligned to the last keys"
            )
        self.check_length(keys)

    def check_length(self, length: int) -> None:
        if length > self.block_size:
            raise UserError(f"{length} tokens are more than block_size={self.block_size}")


class Learned(Position):
    """A learned vector for every position, added to the embeddings (Gehring 2017, GPT-2).

    Parameters: block_size * C.
    """

    limit = "its table has a learned row for every position up to there, and none beyond"

    def __init__(self, **sizes: int) -> None:
        super().__init__(**sizes)
        self.table = nn.Embedding(self.block_size, self.embed_dim)

    def forward(self, embeddings: Tensor, start: int = 0) -> Tensor:
        end = self.end_of(embeddings, start)
        return embeddings + self.table.weight[start:end]


class NoPosition(Position):
    """No encoding at all. A causal model still learns some order from what its mask hides
    (Haviv 2022).

    Parameters: none.
    """


def distances(queries: int, keys: int, device: torch.device | None = None) -> Tensor:
    """How far each key lies before each query, (T, S) int64; below 0 for keys that come later."""
    key = torch.arange(keys, device=device)
    return key[keys - queries :, None] - key


def check_embeddings(x: Tensor, width: int) -> None:
    """Raises UserError when x is not floating-point numbers (B, T, width), or are empty."""
    if x.dim() != 3 or x.size(-1) != width or x.numel() == 0 or not x.is_floating_point():
        raise UserError(
            f"embeddings are {x.dtype} of shape {tuple(x.shape)}: give floating-point numbers "
            f"(B, T, {width}) with at least one token"
        )
