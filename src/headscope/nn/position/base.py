"""The interface of position encodings, and the model without one.

Shapes: B batch, T tokens or queries, S keys, C embed_dim, H heads, D head_dim.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from headscope.errors import UserError


class Position(nn.Module):
    """Base class of position encodings, which tell the model the order of the tokens.

    A subclass overrides one of three methods: `forward` changes the embeddings, `rotate` changes
    queries and keys, and `bias` returns numbers that are added to the scores. All layers share one
    position encoding. The constructor takes four sizes, which every subclass must pass to it.

    `block_size` is the maximum sequence length. `start` is the number of tokens in the key-value
    cache, which come before the given tokens. In `rotate` and `bias`, queries are aligned to the
    last keys.

    An overridden method raises UserError when a sequence is longer than `block_size`, or when its
    inputs are empty, have the wrong shape, or are not floating-point numbers.
    """

    limit: str | None = None
    """The reason why the `block_size` of a trained model cannot be increased; None if it can be
    increased."""

    def __init__(self, *, embed_dim: int, block_size: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.embed_dim = embed_dim
        self.block_size = block_size
        self.heads = heads
        self.head_dim = head_dim

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Position":
        """Moves and converts the module like any other module, but keeps the dtype of buffers, such
        as slopes and sines. Otherwise `.bfloat16()` would round the buffers."""
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
        """Rotates the queries (B, H, T, D) and the keys (B, K, S, D) according to their
        positions."""
        return q, k

    def bias(self, queries: int, keys: int) -> Tensor | None:
        """The tensor (1 or H, T, S) to add to the scores. None adds nothing."""
        return None

    def checked_end(self, embeddings: Tensor, start: int) -> int:
        """Returns start + T, the position after the last of the embeddings (B, T, C). Raises
        UserError when the embeddings have the wrong shape, or when the sequence is too long."""
        check_embeddings(embeddings, self.embed_dim)
        end = start + embeddings.size(1)
        self.check_length(end)
        return end

    def check_pairs(self, queries: int, keys: int) -> None:
        """Raises UserError when there are no queries, more queries than keys, or more keys than
        `block_size`."""
        if not 1 <= queries <= keys:
            raise UserError(
                f"queries ({queries}) must be at least 1 and must not outnumber keys ({keys}): "
                "queries are aligned to the last keys"
            )
        self.check_length(keys)

    def check_length(self, length: int) -> None:
        if length > self.block_size:
            raise UserError(f"{length} tokens are more than block_size={self.block_size}")


class NoPosition(Position):
    """No position encoding. A causal model still learns some order from the causal mask
    (Haviv 2022).

    Parameters: none.
    """


def distances(queries: int, keys: int, device: torch.device | None = None) -> Tensor:
    """The query position minus the key position, as int64 (T, S). It is negative for keys after the
    query."""
    position = torch.arange(keys, device=device)
    return position[keys - queries :, None] - position


def check_embeddings(x: Tensor, width: int) -> None:
    """Raises UserError unless x is a non-empty floating-point tensor (B, T, width)."""
    if x.dim() != 3 or x.size(-1) != width or x.numel() == 0 or not x.is_floating_point():
        raise UserError(
            f"embeddings are {x.dtype} of shape {tuple(x.shape)}: give floating-point numbers "
            f"(B, T, {width}) with at least one token"
        )
