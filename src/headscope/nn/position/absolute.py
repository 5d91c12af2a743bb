"""Encodings that are added to the embeddings.

Shapes: B batch, T tokens, C embed_dim.
"""

import math

import torch
from torch import Tensor

from headscope.errors import UserError
from headscope.nn.position.base import Position


class FixedTable(Position):
    """A `table` (block_size, C) that is computed, not learned, added to the embeddings."""

    table: Tensor

    def forward(self, embeddings: Tensor, start: int = 0) -> Tensor:
        end = self.end_of(embeddings, start)
        return embeddings + self.table[start:end].to(embeddings.dtype)


class Sinusoidal(FixedTable):
    """Fixed sines and cosines of falling frequency, added to the embeddings (Vaswani 2017, 3.5).

    Dimension 2i of position t is sin(t / base^(2i / C)), dimension 2i + 1 the cosine of the same
    angle. A shift of the text turns each such pair by an angle of its own, the same wherever it
    stands.

    Parameters: none. Raises UserError when `base` is not above 0 and finite.
    """

    def __init__(self, *, base: float = 10000.0, **sizes: int) -> None:
        super().__init__(**sizes)
        check_base(base)
        table = sinusoidal_table(self.block_size, self.embed_dim, base)
        self.register_buffer("table", table, persistent=False)


def check_base(base: float) -> None:
    """Raises UserError when no frequencies can be made of `base`."""
    if not 0 < base < math.inf:
        raise UserError(f"base={base} must be above 0 and finite")


def angles(length: int, width: int, base: float) -> Tensor:
    """Position t times base^(-2i / width), for i up to half the width, rounded up, in float64.

    In float32 the angles of far positions would be wrong by a thousandth.
    """
    position = torch.arange(length, dtype=torch.float64)[:, None]
    half = torch.arange(0, width, 2, dtype=torch.float64)
    return position * torch.exp(half * (-math.log(base) / width))


def sinusoidal_table(length: int, width: int, base: float = 10000.0) -> Tensor:
    """The table (length, width) of `Sinusoidal`, in float32.

    An odd width ends on a sine without its cosine.
    """
    angle = angles(length, width, base)
    table = torch.empty(length, width, dtype=torch.float64)
    table[:, 0::2] = torch.sin(angle)
    table[:, 1::2] = torch.cos(angle[:, : width // 2])
    return table.float()
