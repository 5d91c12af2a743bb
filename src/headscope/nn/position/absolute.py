"""Position encodings that are added to the embeddings: learned, or fixed.

Shapes: B batch, T tokens, C embed_dim.
"""

import math

import torch
from torch import Tensor, nn

from headscope.errors import UserError
from headscope.nn.position.base import Position


class Learned(Position):
    """One learned vector per position, added to the embeddings (Gehring 2017, GPT-2).

    Parameters: block_size * C.
    """

    limit = "its learned table has no rows for later positions"

    def __init__(self, **sizes: int) -> None:
        super().__init__(**sizes)
        self.table = nn.Embedding(self.block_size, self.embed_dim)

    def forward(self, embeddings: Tensor, start: int = 0) -> Tensor:
        end = self.checked_end(embeddings, start)
        return embeddings + self.table.weight[start:end]


class FixedTable(Position):
    """Adds a `table` (block_size, C) to the embeddings. The table is fixed, not learned."""

    table: Tensor

    def forward(self, embeddings: Tensor, start: int = 0) -> Tensor:
        end = self.checked_end(embeddings, start)
        return embeddings + self.table[start:end].to(embeddings.dtype)


class Sinusoidal(FixedTable):
    """Sines and cosines of decreasing frequency, added to the embeddings (Vaswani 2017, 3.5).

    At position t, dimension 2i is sin(t / base^(2i / C)), and dimension 2i + 1 is the cosine of the
    same angle. From position t to position t + n, each such pair is rotated by an angle that
    depends on n and i, but not on t.

    Parameters: none. Raises UserError when `base` is not positive or not finite.
    """

    def __init__(self, *, base: float = 10000.0, **sizes: int) -> None:
        super().__init__(**sizes)
        check_base(base)
        table = sinusoidal_table(self.block_size, self.embed_dim, base)
        self.register_buffer("table", table, persistent=False)


def check_base(base: float) -> None:
    """Raises UserError when `base` is not positive or not finite."""
    if not 0 < base < math.inf:
        raise UserError(f"base={base} must be above 0 and finite")


def angles(length: int, width: int, base: float) -> Tensor:
    """The angles t base^(-2i / width) for each position t and each pair of dimensions i, in
    float64. The result has shape (length, width / 2 rounded up).

    In float32, the angles of late positions would have errors of about 0.001.
    """
    position = torch.arange(length, dtype=torch.float64)[:, None]
    even_dimension = torch.arange(0, width, 2, dtype=torch.float64)
    return position * torch.exp(even_dimension * (-math.log(base) / width))


def sinusoidal_table(length: int, width: int, base: float = 10000.0) -> Tensor:
    """The table (length, width) of `Sinusoidal`, in float32. If `width` is odd, the last dimension
    is a sine without a cosine."""
    angle = angles(length, width, base)
    table = torch.empty(length, width, dtype=torch.float64)
    table[:, 0::2] = torch.sin(angle)
    table[:, 1::2] = torch.cos(angle[:, : width // 2])
    return table.float()
