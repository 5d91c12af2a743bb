"""Position encodings: how a model that sees a set of tokens learns their order.

Shapes: B batch, T tokens, C embed_dim.
"""

import math

import torch
from torch import Tensor, nn


class Position(nn.Module):
    """What every position encoding does: turn embeddings (B, T, C) into embeddings that know
    where they stand. `block_size` is the longest T."""

    def __init__(self, *, embed_dim: int, block_size: int) -> None:
        super().__init__()

    def forward(self, embeddings: Tensor) -> Tensor:
        return embeddings


class NoPosition(Position):
    """No encoding at all. A causal model still learns some order from what its mask hides
    (Haviv 2022)."""


class Learned(Position):
    """A learned vector for every position, added to the embeddings (Gehring 2017, GPT-2).

    Parameters: block_size * embed_dim. Positions beyond `block_size` do not exist.
    """

    def __init__(self, *, embed_dim: int, block_size: int) -> None:
        super().__init__(embed_dim=embed_dim, block_size=block_size)
        self.table = nn.Embedding(block_size, embed_dim)

    def forward(self, embeddings: Tensor) -> Tensor:
        return embeddings + self.table.weight[: embeddings.size(1)]


class Sinusoidal(Position):
    """Fixed sines and cosines of falling frequency, added to the embeddings (Vaswani 2017, 3.5).

    Dimension 2i of position t is sin(t / base^(2i / C)), dimension 2i + 1 the cosine of the same
    angle. The table is computed, so it is in no checkpoint and has no parameters.
    """

    table: Tensor

    def __init__(self, *, embed_dim: int, block_size: int, base: float = 10000.0) -> None:
        super().__init__(embed_dim=embed_dim, block_size=block_size)
        if not 0 < base < math.inf:
            raise ValueError(f"base={base} must be above 0 and finite")
        self.register_buffer(
            "table", sinusoidal_table(block_size, embed_dim, base), persistent=False
        )

    def forward(self, embeddings: Tensor) -> Tensor:
        return embeddings + self.table[: embeddings.size(1)].to(embeddings.dtype)


def sinusoidal_table(length: int, width: int, base: float = 10000.0) -> Tensor:
    """The table (length, width) of `Sinusoidal`, computed in float64 and returned in float32.

    An odd width ends on a sine without its cosine.
    """
    position = torch.arange(length, dtype=torch.float64)[:, None]
    frequency = torch.exp(
        torch.arange(0, width, 2, dtype=torch.float64) * (-math.log(base) / width)
    )
    table = torch.empty(length, width, dtype=torch.float64)
    table[:, 0::2] = torch.sin(position * frequency)
    table[:, 1::2] = torch.cos(position * frequency[: width // 2])
    return table.float()
