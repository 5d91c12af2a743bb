"""The steps that led to sinusoids, kept because they teach. All are added to the embeddings.

Shapes: B batch, T tokens, C embed_dim.

Each docstring says what goes wrong. The first two go wrong in one more way in this model: a number
that is the same in all C dimensions is what LayerNorm takes away, so no block ever sees it. Unless
there is dropout: of equal numbers it makes unequal ones, noise of the size of the position.
"""

import torch
from torch import Tensor

from headscope.errors import UserError
from headscope.nn.position.absolute import FixedTable
from headscope.nn.position.base import Position


class Index(Position):
    """The position itself, 1 to n, added to every dimension.

    What goes wrong: it has no bound. Embeddings are of size 0.02 to 1, so that at position 64 the
    token is a ripple on a far larger number, and in bf16, whose steps at 64 are of 0.5, it is gone.
    Texts longer than those of training bring sizes that no weight has ever met. And it is the same
    in all dimensions, so LayerNorm removes it: the model learns as without any position, or, with
    dropout, from noise that drowns the token.

    Parameters: none.
    """

    def forward(self, embeddings: Tensor, start: int = 0) -> Tensor:
        self.check_length(start + embeddings.size(1))
        return embeddings + place(embeddings, start)


class Normalized(Position):
    """The position over `block_size`, a number in (0, 1], added to every dimension.

    It is bounded, at a price: the step from a word to the next is 1 / `block_size`, finer than bf16
    can tell for long texts, and a model knows one `block_size` alone. Dividing by the text's own
    length, as first proposed, is worse: a word that is appended moves all the others.

    >>> def over_own_length(text):
    ...     words = text.split()
    ...     return {word: round((i + 1) / len(words), 2) for i, word in enumerate(words)}
    >>> over_own_length("heads attend")
    {'heads': 0.5, 'attend': 1.0}
    >>> over_own_length("heads attend everywhere")
    {'heads': 0.33, 'attend': 0.67, 'everywhere': 1.0}

    As with `Index`, what is the same in all dimensions is removed by LayerNorm.

    Parameters: none.
    """

    limit = "it is the position over block_size: another one would move every token"

    def forward(self, embeddings: Tensor, start: int = 0) -> Tensor:
        self.check_length(start + embeddings.size(1))
        return embeddings + place(embeddings, start) / self.block_size


class Digits(FixedTable):
    """The position, from 0, written in base b, one digit a dimension, the lowest first, zeros after
    the highest.

    It is bounded, and LayerNorm keeps it. What goes wrong: it jumps. From 7 to 8 in base 2 four
    digits change, from 6 to 7 one, so near positions may lie far apart and far ones near. Sinusoids
    keep the idea, low dimensions that turn fast and high ones that turn slowly, and make it smooth.

    Parameters: none. Raises UserError when `base` is below 2, or the digits do not fit in C.
    """

    def __init__(self, *, base: int = 2, **sizes: int) -> None:
        super().__init__(**sizes)
        if base < 2:
            raise UserError(f"base={base} of digits must be at least 2")
        digits = 1
        while base**digits < self.block_size:
            digits += 1
        if digits > self.embed_dim:
            raise UserError(
                f"embed_dim={self.embed_dim} digits of base={base} do not count to "
                f"block_size={self.block_size}"
            )
        table = digit_table(self.block_size, self.embed_dim, base)
        self.register_buffer("table", table, persistent=False)


def place(embeddings: Tensor, start: int) -> Tensor:
    """start + 1 to start + T, as a column (T, 1)."""
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
