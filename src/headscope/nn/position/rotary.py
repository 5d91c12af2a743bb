"""Rotary position encoding: queries and keys are turned, so that scores know distances.

Shapes: B batch, T queries, S keys, H heads, K kv heads, D head_dim.
"""

import torch
from torch import Tensor

from headscope.errors import UserError
from headscope.nn.position.absolute import angles, check_base
from headscope.nn.position.base import Position
from headscope.nn.precision import upcast_to_float32


class Rotary(Position):
    """RoPE (Su 2021): pair i of a query or key at position t is turned by t / base^(2i / D).

    The dot product of a turned query and a turned key depends on their distance alone. Pairs are
    (i, i + D / 2), as in Llama, or with `interleaved` (2i, 2i + 1), as in the paper: with the rows
    of the projections permuted the two are the same.

    Parameters: none; the angles are computed. Raises UserError when D is odd, or `base` is not
    above 0 and finite.
    """

    rotates = True
    cos: Tensor
    sin: Tensor

    def __init__(self, *, base: float = 10000.0, interleaved: bool = False, **sizes: int) -> None:
        super().__init__(**sizes)
        check_base(base)
        if self.head_dim % 2:
            raise UserError(
                f"head_dim={self.head_dim} must be even: rotary turns a head's numbers in pairs"
            )
        self.turn = turn_interleaved if interleaved else turn_halves
        angle = angles(self.block_size, self.head_dim, base)  # (block_size, D / 2)
        self.register_buffer("cos", angle.cos().float(), persistent=False)
        self.register_buffer("sin", angle.sin().float(), persistent=False)

    def rotate(self, q: Tensor, k: Tensor, start: int = 0) -> tuple[Tensor, Tensor]:
        for part in (q, k):
            if part.dim() != 4 or part.size(-1) != self.head_dim or not part.is_floating_point():
                raise UserError(
                    f"queries or keys are {part.dtype} of shape {tuple(part.shape)}: give "
                    f"floating-point numbers (B, heads, tokens, {self.head_dim})"
                )
        self.check_pairs(q.size(2), k.size(2))
        end, first = start + k.size(2), k.size(2) - q.size(2)
        self.check_length(end)
        cos, sin = self.cos[start:end], self.sin[start:end]
        return self.turn(q, cos[first:], sin[first:]), self.turn(k, cos, sin)


def turn_halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x (..., T, D) with each pair (i, i + D / 2) turned by the angle whose cos and sin (T, D / 2)
    are given."""
    a, b = upcast_to_float32(x).chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)


def turn_interleaved(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The same with pairs (2i, 2i + 1)."""
    a, b = upcast_to_float32(x).unflatten(-1, (-1, 2)).unbind(dim=-1)
    return torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2).to(x.dtype)
