"""Simple position encodings for teaching, which show why sinusoids were introduced.

All encodings here are added to the embeddings. The docstring of each encoding explains its
problems.

Shapes: B batch, T tokens, C embed_dim.

`Index` and `Normalized` share one more problem: they add the same number to all C dimensions.
LayerNorm subtracts the mean over the dimensions. This removes that number, so no block sees the
position. Dropout before the first norm sets some dimensions to zero. Then LayerNorm does not remove
the position completely, and the rest of it acts as noise. RMSNorm does not subtract the mean, so
the position remains.
"""

import torch
from torch import Tensor

from headscope.errors import UserError
from headscope.nn.position.absolute import FixedTable
from headscope.nn.position.base import Position, check_embeddings


class Index(Position):
    """Adds the position, 1 to T, to every dimension.

    Problems:

    - The added number grows without limit. Embeddings have a standard deviation between 0.02 and
      1, so at position 64 the token embedding is a small part of the sum. In bf16, numbers near 64
      are rounded to multiples of 0.5, so the token embedding is lost.
    - Sequences that are longer than the training sequences contain positions that the weights were
      not trained on.
    - All dimensions get the same number. With model/norm=layer, the norm removes this number, and
      the model trains as if it had no position encoding. With dropout, the model sees noise that is
      larger than the token embedding. With model/norm=rms, the norm keeps the position, but the
      token embedding stays small relative to it.

    Parameters: none.
    """

    def forward(self, embeddings: Tensor, start: int = 0) -> Tensor:
        self.checked_end(embeddings, start)
        return embeddings + position_column(embeddings, start)


class Normalized(Position):
    """Adds position / `block_size`, a number in (0, 1], to every dimension.

    Problems:

    - Neighbouring positions differ by only 1 / `block_size`. For a long `block_size`, this is less
      than the precision of bf16.
    - A model works only with the `block_size` that it was trained with. Dividing by the length of
      each text instead of `block_size` is worse: see `add_position_over_length`.
    - All dimensions get the same number, as in `Index`: LayerNorm removes this number, RMSNorm
      keeps it.

    Parameters: none.
    """

    limit = "it adds position / block_size, so another block_size changes every token"

    def forward(self, embeddings: Tensor, start: int = 0) -> Tensor:
        self.checked_end(embeddings, start)
        return embeddings + position_column(embeddings, start) / self.block_size


class Digits(FixedTable):
    """Adds the digits of the position in the given base. The first position is 0. Each digit is
    added to one dimension, beginning with the lowest digit. Nothing is added to the remaining
    dimensions.

    This encoding is bounded, and no norm removes it. Its problem is that it is not smooth. In base
    2, four digits change between 7 and 8, but only one digit changes between 6 and 7. So
    neighbouring positions may have very different encodings, and distant positions may have similar
    encodings. Sinusoids are a smooth version of this idea: low dimensions change fast, high
    dimensions slowly.

    Parameters: none. Raises UserError when `base` is below 2, or when there are more digits than
    dimensions.
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
    """Adds position / length to embeddings (B, T, C). The position of the first token is 1. The
    length is the number of tokens in the text.

    `lengths` (B,) contains the number of tokens of each text without padding. The default is T.
    Padding after a text gets values above 1.

    This encoding has two problems. An appended token changes the encoding of all earlier tokens.
    The difference between neighbouring positions depends on the length of the text.

    >>> zeros = torch.zeros(1, 3, 1)
    >>> add_position_over_length(zeros[:, :2]).flatten()
    tensor([0.5000, 1.0000])
    >>> add_position_over_length(zeros).flatten()
    tensor([0.3333, 0.6667, 1.0000])

    This is only a function and not a choice of model/position, for three reasons:

    - In a causal model, every token would know how many tokens follow. This leaks the future.
    - Cached keys and values would become wrong with every new token.
    - In training, all windows have `block_size` tokens, so the encoding equals `Normalized`. In
      sampling, the lengths differ, so the encoding differs from the encoding in training.

    Raises UserError when the embeddings do not have shape (B, T, C), or when `lengths` does not
    contain B numbers from 1 to T.
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
    """The positions from start + 1 to start + T, as a column (T, 1)."""
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
