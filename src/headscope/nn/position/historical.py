"""Simple position encodings that show why sinusoids were introduced. For teaching.

All are added to the embeddings. Each docstring explains the problem of its encoding.

Shapes: B batch, T tokens, C embed_dim.

`Index` and `Normalized` share one more problem: they add the same number to all C dimensions.
LayerNorm subtracts the mean over the dimensions, which removes that number, so no block sees the
position. (Dropout before the first norm makes the dimensions unequal: the position then acts as
noise.) RMSNorm does not subtract the mean, so the position remains.
"""

import torch
from torch import Tensor

from headscope.errors import UserError
from headscope.nn.position.absolute import FixedTable
from headscope.nn.position.base import Position, check_embeddings


class Index(Position):
    """Adds the position, 1 to T, to every dimension.

    Problems:

    - It is unbounded. Embeddings have values between 0.02 and 1, so at position 64 the token is a
      small part of the sum. bf16 has steps of 0.5 at 64, which loses the token.
    - Sequences longer than those of training give values that the weights were not trained on.
    - All dimensions get the same number. model/norm=layer removes it: the model learns as if it had
      no position, or, with dropout, sees noise that is larger than the token. model/norm=rms keeps
      it, but the token stays small relative to the position.

    Parameters: none.
    """

    def forward(self, embeddings: Tensor, start: int = 0) -> Tensor:
        self.checked_end(embeddings, start)
        return embeddings + position_column(embeddings, start)


class Normalized(Position):
    """Adds position / `block_size`, a number in (0, 1], to every dimension.

    Problems:

    - Neighbouring positions differ by 1 / `block_size`, which is less than the precision of bf16
      for long sequences.
    - A model works only with the `block_size` of its training. Dividing by the length of each text
      instead, as first proposed, is worse: see `add_position_over_length`.
    - All dimensions get the same number, as with `Index`: LayerNorm removes it, RMSNorm keeps it.

    Parameters: none.
    """

    limit = "it adds position / block_size, so another block_size changes every token"

    def forward(self, embeddings: Tensor, start: int = 0) -> Tensor:
        self.checked_end(embeddings, start)
        return embeddings + position_column(embeddings, start) / self.block_size


class Digits(FixedTable):
    """Adds the digits of the position, from 0, in the given base. Each digit has one dimension, the
    lowest digit first; the remaining dimensions get zero.

    It is bounded, and no norm removes it. Its problem: it jumps. In base 2, four digits change
    between 7 and 8, but only one between 6 and 7. So neighbouring positions may have very different
    encodings, and distant ones similar encodings. Sinusoids are a smooth version of this idea: low
    dimensions change fast, high dimensions slowly.

    Parameters: none. Raises UserError when `base` is below 2, or the digits do not fit in C.
    """

    def __init__(self, *, base: int = 2, **sizes: int) -> None:
        super().__init__(**sizes)
        if base < 2:
            raise UserError(f"base={base} of model/position=digits must be at least 2")
        digits = 1
        while base**digits < self.block_size:
            digits += 1
        if digits > self.embed_dim:
            raise UserError(
                f"embed_dim={self.embed_dim} digits in base={base} are too few for "
                f"block_size={self.block_size}: increase model.embed_dim or model.position.base"
            )
        table = digit_table(self.block_size, self.embed_dim, base)
        self.register_buffer("table", table, persistent=False)


def add_position_over_length(embeddings: Tensor, lengths: Tensor | None = None) -> Tensor:
    """Adds position / length to embeddings (B, T, C): each token's position, from 1, divided by the
    number of tokens of its text.

    `lengths` (B,) are the numbers of tokens without padding (default: T). Padding after a text gets
    numbers above 1.

    Its problems: an appended token changes the encoding of all earlier tokens, and the difference
    between neighbouring positions depends on the text's length.

    >>> zeros = torch.zeros(1, 3, 1)
    >>> add_position_over_length(zeros[:, :2]).flatten()
    tensor([0.5000, 1.0000])
    >>> add_position_over_length(zeros).flatten()
    tensor([0.3333, 0.6667, 1.0000])

    For three reasons this is only a function, and not available as model/position. In a causal
    model, every token would know how many tokens follow, which leaks the future. Cached keys and
    values would become wrong with every new token. And in training all windows have `block_size`
    tokens, which makes it equal to `Normalized`, but in sampling the lengths differ.

    Raises UserError when the embeddings are not (B, T, C), or the lengths are not (B,) from 1 to T.
    """
    check_embeddings(embeddings, embeddings.size(-1))
    batch, tokens = embeddings.shape[:2]
    if lengths is None:
        lengths = torch.full((batch,), tokens, device=embeddings.device)
    if lengths.shape != (batch,) or not ((lengths >= 1) & (lengths <= tokens)).all():
        raise UserError(
            f"lengths={lengths.tolist()} must be {batch} numbers from 1 to {tokens}: the number of "
            "tokens of each text"
        )
    return embeddings + position_column(embeddings, 0) / lengths[:, None, None].to(embeddings.dtype)


def position_column(embeddings: Tensor, start: int) -> Tensor:
    """The positions start + 1 to start + T, (T, 1)."""
    first, end = start + 1, start + 1 + embeddings.size(1)
    return torch.arange(first, end, device=embeddings.device, dtype=embeddings.dtype)[:, None]


def digit_table(length: int, width: int, base: int) -> Tensor:
    """The table (length, width) of `Digits`."""
    table = torch.zeros(length, width)
    for dimension in range(width):
        if base**dimension >= length:
            break
        table[:, dimension] = torch.arange(length) // base**dimension % base
    return table
