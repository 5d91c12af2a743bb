"""A key-value cache: what attention needs again of the tokens that were read.

Shapes: B batch, T new tokens, S all tokens, L layers, K kv heads, D head_dim.
"""

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from headscope.errors import UserError

if TYPE_CHECKING:
    from headscope.nn.gpt import GPT


class Past(NamedTuple):
    """The room for one layer's keys and values, (B, K, S and more, D) each, of which the first
    `length` places are taken."""

    keys: Tensor
    values: Tensor
    length: int

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Put k and v (B, K, T, D) after what is there; returns all there is now, (B, K, S, D)."""
        end = self.length + k.size(2)
        self.keys[:, :, self.length : end] = k
        self.values[:, :, self.length : end] = v
        return self.keys[:, :, :end], self.values[:, :, :end]


class Cache:
    """Room for the keys and values of B texts of one length, taken once and for all:
    2 L B K D (block_size + 1) numbers, and for the tokens. `length` tokens of each were read.

    It is filled in place, so it is for use without gradients.
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
        # A place more than is used: what was read is never all there is, which would be another
        # layout in memory, and a compiled reading is compiled for one.
        places = block_size + 1
        shape = (batch, kv_heads, places, head_dim)
        self.layers = [
            tuple(torch.zeros(shape, dtype=dtype, device=device) for _ in ("keys", "values"))
            for _ in range(layers)
        ]
        self.tokens = torch.zeros(batch, places, dtype=torch.long, device=device)
        self.block_size = block_size
        self.length = 0

    def append(self, tokens: Tensor) -> Tensor:
        """Put `tokens` (B, T) after those that were read; returns all, (B, length + T).

        Raises UserError when there is no room for them.
        """
        end = self.length + tokens.size(1)
        if end > self.block_size:
            raise UserError(f"{end} tokens are more than block_size={self.block_size}")
        self.tokens[:, self.length : end] = tokens
        return self.tokens[:, :end]

    def pasts(self) -> list[Past]:
        """What every layer has."""
        return [Past(keys, values, self.length) for keys, values in self.layers]


def make_cache(model: "GPT", batch: int) -> Cache:
    """An empty cache for `batch` texts, in the dtype of the weights."""
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
    """The size of a key-value cache for each token: 2 K D numbers in every layer."""
    numbers = sum(2 * part.kv_heads * part.head_dim for part in model.attentions)
    return numbers * model.embedding.weight.element_size()
