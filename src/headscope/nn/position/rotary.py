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

    With a `share` below 1, only the first dimensions of each head are rotated, rounded down to a
    number R, which takes the place of D above. The others do not depend on positions (GPT-NeoX,
    Black 2022).

    Angles are computed in float64. With `float32_angles`, frequencies and angles are rounded to
    float32, as in transformers: at position 2,000, angles differ by about 0.0001.

    Parameters: none. Raises UserError when R is odd or 0, when `share` is above 1, or when `base`
    is not positive or not finite.
    """

    cos: Tensor
    sin: Tensor

    def __init__(
        self,
        *,
        base: float = 10000.0,
        interleaved: bool = False,
        share: float = 1.0,
        float32_angles: bool = False,
        **sizes: int,
    ) -> None:
        super().__init__(**sizes)
        check_positive(base=base, share=share)
        self.rotated = int(self.head_dim * share)
        if not 0 < self.rotated <= self.head_dim or self.rotated % 2:
            problem = f"head_dim={self.head_dim} * share={share} must be even and above 0"
            raise UserError(f"{problem}, and share at most 1: rotary positions rotate pairs")
        self.rotate_pairs = rotate_interleaved if interleaved else rotate_halves
        table = rounded_angles if float32_angles else angles
        angle = table(self.block_size, self.rotated, base)  # (block_size, R / 2)
        dtype = torch.promote_types(torch.get_default_dtype(), torch.float32)
        self.register_buffer("cos", angle.cos().to(dtype), persistent=False)
        self.register_buffer("sin", angle.sin().to(dtype), persistent=False)

    def rotate(self, q: Tensor, k: Tensor, start: int = 0) -> tuple[Tensor, Tensor]:
        check_alignment(q.size(2), k.size(2), self.block_size, start)
        end, first = start + k.size(2), k.size(2) - q.size(2)
        cos, sin = self.cos[start:end], self.sin[start:end]
        return self.rotate_first(q, cos[first:], sin[first:]), self.rotate_first(k, cos, sin)

    def rotate_first(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotates the first R dimensions of x (..., T, D)."""
        if self.rotated == self.head_dim:
            return self.rotate_pairs(x, cos, sin)
        rotated, others = x.split((self.rotated, self.head_dim - self.rotated), dim=-1)
        return torch.cat([self.rotate_pairs(rotated, cos, sin), others], dim=-1)


def rounded_angles(length: int, width: int, base: float) -> Tensor:
    """Like `angles`, with frequencies in float32, and angles in the default dtype, which is that of
    the model: so they are those of transformers, also if both models are in float64."""
    even_dimension = torch.arange(0, width, 2, dtype=torch.float32)
    frequencies = 1.0 / (base ** (even_dimension / width))
    dtype = torch.promote_types(torch.get_default_dtype(), torch.float32)
    return torch.arange(length, dtype=dtype)[:, None] * frequencies.to(dtype)


def rotate_halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates each pair of dimensions (i, i + D / 2) of x (..., T, D). `cos` and `sin` (T, D / 2)
    are the cosines and sines of the angles."""
    a, b = upcast_to_float32(x).chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)


def rotate_interleaved(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Like `rotate_halves`, but with the pairs of dimensions (2i, 2i + 1)."""
    a, b = upcast_to_float32(x).unflatten(-1, (-1, 2)).unbind(dim=-1)
    return torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2).to(x.dtype)
