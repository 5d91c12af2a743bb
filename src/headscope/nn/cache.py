"""The key-value cache, which avoids recomputing keys and values of earlier tokens.

Shapes: B batch, T new tokens, S all tokens (cached and new), L layers, K kv heads, D head_dim.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from headscope.nn.checks import check_length


class Past(NamedTuple):
    """The cached keys and values of one layer, each with shape (B, K, block_size + 1, D). The first
    `length` slots of the third axis are in use."""

    keys: Tensor
    values: Tensor
    length: int

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Writes new keys and values (B, K, T, D) to free slots. Returns all (B, K, S, D)."""
        end = self.length + k.size(2)
        self.keys[:, :, self.length : end] = k
        self.values[:, :, self.length : end] = v
        return self.keys[:, :, :end], self.values[:, :, :end]


class Cache:
    """The keys, values and tokens of `batch` sequences of equal length, `length` of them so far,
    for a `GPT`. The keys and values have the dtype of its weights.

    All memory is allocated when the cache is created: 2 L B K D (block_size + 1) numbers for keys
    and values, and the tokens. It is modified in place, so it does not support gradients.
    """

    def __init__(self, model: Any, batch: int) -> None:
        layer, like = model.attentions[0], model.embedding.weight
        self.block_size = model.block_size
        # One spare slot, so that the slice of used slots is never contiguous, not even in a full
        # cache. For contiguous slices, torch.compile would compile a second variant of the step.
        slots = self.block_size + 1
        shape = (batch, layer.kv_heads, slots, layer.head_dim)
        self.layers = [(like.new_zeros(shape), like.new_zeros(shape)) for _ in model.blocks]
        self.tokens = torch.zeros(batch, slots, dtype=torch.long, device=like.device)
        self.length = 0

    def append(self, tokens: Tensor) -> Tensor:
        """Writes `tokens` (B, T) to the next free slots. Returns all tokens so far, (B, S). The
        caller must increase `length` afterwards. Raises UserError for more than `block_size`."""
        end = self.length + tokens.size(1)
        check_length(end, self.block_size)
        self.tokens[:, self.length : end] = tokens
        return self.tokens[:, :end]

    def pasts(self) -> list[Past]:
        """The cached keys and values of every layer."""
        return [Past(keys, values, self.length) for keys, values in self.layers]


def cache_bytes_per_token(model: Any) -> int:
    """The size of the cache of a `GPT` per token, in bytes: 2 K D numbers in every layer."""
    numbers = sum(2 * layer.kv_heads * layer.head_dim for layer in model.attentions)
    return numbers * model.embedding.weight.element_size()
