"""The interface of position encodings, and the model without one.

Shapes: B batch, T tokens or queries, S keys, C embed_dim, H heads, D head_dim.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from headscope.nn.checks import check_length


class Position(nn.Module):
    """Base class of position encodings, which tell the model the order of the tokens.

    A subclass overrides one of three methods: `forward` changes the embeddings, `rotate` changes
    queries and keys, and `bias` returns numbers that are added to the scores. All layers share one
    position encoding. The constructor takes four sizes, which every subclass must pass to it.

    `start` is the number of tokens in the key-value cache, which come before the given tokens. In
    `rotate` and `bias`, queries are aligned to the last keys. An overridden method raises UserError
    when a sequence is longer than `block_size`.
    """

    limit: str | None = None
    """Why the `block_size` of a trained model cannot be increased; None if it can."""

    def __init__(self, *, embed_dim: int, block_size: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.embed_dim, self.block_size = embed_dim, block_size
        self.heads, self.head_dim = heads, head_dim

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Position":
        """Moves and converts the module, but keeps the dtype of buffers: bf16 would round them."""
        old_buffers = dict(self._buffers)
        super()._apply(fn, recurse)
        for name, old in old_buffers.items():
            new = self._buffers[name]
            if old is not None and new is not None and new.dtype != old.dtype:
                self._buffers[name] = old.to(new.device)
        return self

    def forward(self, embeddings: Tensor, start: int = 0) -> Tensor:
        """Embeddings (B, T, C) with the position added."""
        return embeddings

    def rotate(self, q: Tensor, k: Tensor, start: int = 0) -> tuple[Tensor, Tensor]:
        """Rotates queries (B, H, T, D) and keys (B, K, S, D) according to their positions."""
        return q, k

    def bias(self, queries: int, keys: int) -> Tensor | None:
        """The tensor (1 or H, T, S) to add to the scores. None adds nothing."""
        return None

    def checked_end(self, embeddings: Tensor, start: int) -> int:
        """Returns start + T, the next position. Raises UserError if it is above `block_size`."""
        end = start + embeddings.size(1)
        check_length(end, self.block_size)
        return end


class NoPosition(Position):
    """No position encoding. A causal model still learns order (Haviv 2022). Parameters: none."""


def angles(length: int, width: int, base: float) -> Tensor:
    """The angles t base^(-2i / width) for each position t and each pair of dimensions i. The result
    has shape (length, width / 2 rounded up) and is float64: in float32, the angles of late
    positions would have errors of about 0.001."""
    position = torch.arange(length, dtype=torch.float64)[:, None]
    even_dimension = torch.arange(0, width, 2, dtype=torch.float64)
    return position * torch.exp(even_dimension * (-math.log(base) / width))
