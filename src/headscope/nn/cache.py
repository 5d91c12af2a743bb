"""The key-value cache, which avoids recomputing keys and values of earlier tokens.

Shapes: B batch, T new tokens, S all tokens (cached and new), L layers, K kv heads, D head_dim.
"""

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from headscope.errors import UserError

if TYPE_CHECKING:
    from headscope.nn.gpt import GPT


class Past(NamedTuple):
    """The cached keys and values of one layer, each with shape (B, K, block_size + 1, D). The first
    `length` slots of the third axis are in use."""

    keys: Tensor
    values: Tensor
    length: int

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Writes the new keys k and values v, each (B, K, T, D), to the next free slots. Returns
        all keys and all values so far, each (B, K, S, D)."""
        end = self.length + k.size(2)
        self.keys[:, :, self.length : end] = k
        self.values[:, :, self.length : end] = v
        return self.keys[:, :, :end], self.values[:, :, :end]


class Cache:
    """The keys, values and tokens of B sequences of equal length.

    All memory is allocated when the cache is created: 2 L B K D (block_size + 1) numbers for keys
    and values, and the memory of the tokens. The first `length` tokens of each sequence are cached.

    The cache is modified in place, so it does not support gradients.
    """

    def __init__(
        self,
        *,
        layers: int,
        batch: int,
        kv_heads: int,
        block_size: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        # One spare slot, so that the slice of used slots is never contiguous, not even in a full
        # cache. For contiguous slices, torch.compile would compile a second variant of the step.
        slots = block_size + 1
        shape = (batch, kv_heads, slots, head_dim)
        self.layers = [
            tuple(torch.zeros(shape, dtype=dtype, device=device) for _ in ("keys", "values"))
            for _ in range(layers)
        ]
        self.tokens = torch.zeros(batch, slots, dtype=torch.long, device=device)
        self.block_size = block_size
        self.length = 0

    def append(self, tokens: Tensor) -> Tensor:
        """Writes `tokens` (B, T) to the next free slots. Returns all tokens so far, (B, length +
        T).

        The caller must increase `length` after the forward pass. Raises UserError when the sequence
        becomes longer than `block_size`.
        """
        end = self.length + tokens.size(1)
        if end > self.block_size:
            raise UserError(f"{end} tokens are more than block_size={self.block_size}")
        self.tokens[:, self.length : end] = tokens
        return self.tokens[:, :end]

    def pasts(self) -> list[Past]:
        """The cached keys and values of every layer."""
        return [Past(keys, values, self.length) for keys, values in self.layers]


def make_cache(model: "GPT", batch: int) -> Cache:
    """An empty cache for `batch` sequences, in the dtype of the model's weights."""
    attention = model.attentions[0]
    return Cache(
        layers=len(model.blocks),
        batch=batch,
        kv_heads=attention.kv_heads,
        block_size=model.block_size,
        head_dim=attention.head_dim,
        dtype=model.embedding.weight.dtype,
        device=model.device,
    )


def cache_bytes_per_token(model: "GPT") -> int:
    """The size of the key-value cache per token, in bytes: 2 K D numbers in every layer."""
    numbers = sum(2 * part.kv_heads * part.head_dim for part in model.attentions)
    return numbers * model.embedding.weight.element_size()
