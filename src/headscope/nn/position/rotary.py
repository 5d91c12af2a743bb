"""Rotary position encoding (RoPE): rotates queries and keys, so that scores depend on distances.

Shapes: B batch, T queries, S keys, H heads, K kv heads, D head_dim.
"""

import torch
from torch import Tensor

from headscope.errors import UserError
from headscope.nn.checks import check_alignment, check_positive
from headscope.nn.position.base import Position, angles
from headscope.nn.precision import upcast_to_float32


class Rotary(Position):
    """RoPE (Su 2021): at position t, rotates pair i of the dimensions of a query or key by the
    angle t / base^(2i / D).

    So the dot product of a query and a key depends on their distance, but not on their absolute
    positions. Pair i consists of the dimensions (i, i + D / 2), as in Llama. With `interleaved`,
    pair i consists of the dimensions (2i, 2i + 1), as in the paper. Both are equivalent up to a
    permutation of the rows of the projections.

    Parameters: none. Raises UserError when D is odd, or when `base` is not positive or not finite.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, *, base: float = 10000.0, interleaved: bool = False, **sizes: int) -> None:
        super().__init__(**sizes)
        check_positive(base=base)
        if self.head_dim % 2:
            raise UserError(f"head_dim={self.head_dim} must be even: rotary positions rotate pairs")
        self.rotate_pairs = rotate_interleaved if interleaved else rotate_halves
        angle = angles(self.block_size, self.head_dim, base)  # (block_size, D / 2)
        self.register_buffer("cos", angle.cos().float(), persistent=False)
        self.register_buffer("sin", angle.sin().float(), persistent=False)

    def rotate(self, q: Tensor, k: Tensor, start: int = 0) -> tuple[Tensor, Tensor]:
        check_alignment(q.size(2), k.size(2), self.block_size, start)
        end, first = start + k.size(2), k.size(2) - q.size(2)
        cos, sin = self.cos[start:end], self.sin[start:end]
        return self.rotate_pairs(q, cos[first:], sin[first:]), self.rotate_pairs(k, cos, sin)


def rotate_halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates each pair of dimensions (i, i + D / 2) of x (..., T, D). `cos` and `sin` (T, D / 2)
    are the cosines and sines of the angles."""
    a, b = upcast_to_float32(x).chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)


def rotate_interleaved(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Like `rotate_halves`, but with the pairs of dimensions (2i, 2i + 1)."""
    a, b = upcast_to_float32(x).unflatten(-1, (-1, 2)).unbind(dim=-1)
    return torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2).to(x.dtype)
