"""The steps that led to sinusoids, kept because they teach. All are added to the embeddings.

Shapes: B batch, T tokens, C embed_dim.

Each docstring says what goes wrong. `Index` and `Normalized` have one more problem: they add the
same number to all C dimensions. LayerNorm subtracts the mean over the dimensions and removes it, so
no block sees the position. (Dropout before the first norm makes the numbers unequal: noise of the
size of the position.) RMSNorm subtracts nothing and keeps it.
"""

import torch
from torch import Tensor

from headscope.errors import UserError
from headscope.nn.position.absolute import FixedTable
from headscope.nn.position.base import Position, check_embeddings


class Index(Position):
    """The position itself, 1 to n, added to every dimension.

    What goes wrong: it has no bound. Embeddings are of size 0.02 to 1, so that at position 64 the
    token is a small change of a far larger number, and in bf16, whose steps at 64 are of 0.5, it is
    lost. Texts longer than those of training bring sizes that no weight was trained on. And it is
    the same in all dimensions. With model/norm=layer the norm removes it: the model learns as
    without any position, or, with dropout, from noise that is larger than the token. With
    model/norm=rms it stays, and after the norm the token is as small beside it as before.

    Parameters: none.
    """

    def forward(self, embeddings: Tensor, start: int = 0) -> Tensor:
        self.end_of(embeddings, start)
        return embeddings + place(embeddings, start)


class Normalized(Position):
    """The position over `block_size`, a number in (0, 1], added to every dimension.

    It is bounded, at a price: the step from a token to the next is 1 / `block_size`, finer than
    bf16 can represent for long texts, and a model knows one `block_size` alone. Dividing by the
    text's own length, as first proposed, is worse: see `add_position_over_length`.

    As with `Index`, LayerNorm removes what is the same in all dimensions, and RMSNorm keeps it.

    Parameters: none.
    """

    limit = "it is the position over block_size: another one would move every token"

    def forward(self, embeddings: Tensor, start: int = 0) -> Tensor:
        self.end_of(embeddings, start)
        return embeddings + place(embeddings, start) / self.block_size


class Digits(FixedTable):
    """The position, from 0, written in base b, one digit a dimension, the lowest first, zeros after
    the highest.

    It is bounded, and every norm keeps it. What goes wrong: it jumps. From 7 to 8 in base 2 four
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


def add_position_over_length(embeddings: Tensor, lengths: Tensor | None = None) -> Tensor:
    """Embeddings (B, T, C) plus each token's position, from 1, over the length of its own text.

    `lengths` (B,) are the tokens of each text without the padding after it; T unless given. Padding
    gets numbers above 1. This is the first idea: every text runs from nearly 0 to 1.

    What goes wrong: a token that is appended moves all tokens before it, and the step between
    neighbours differs from text to text.

    >>> zeros = torch.zeros(1, 3, 1)
    >>> add_position_over_length(zeros[:, :2]).flatten()
    tensor([0.5000, 1.0000])
    >>> add_position_over_length(zeros).flatten()
    tensor([0.3333, 0.6667, 1.0000])

    So it is a function and no choice of model/position. In a causal model every token would learn
    how many tokens follow it, which is knowledge of the future. Keys and values in a cache would be
    wrong as soon as the next token comes. And in training all windows are `block_size` long, where
    it is `Normalized`, so that the model never sees what sampling would give it.

    Raises UserError when the embeddings are not (B, T, C) or the lengths not (B,) from 1 to T.
    """
    check_embeddings(embeddings, embeddings.size(-1))
    batch, tokens = embeddings.shape[:2]
    if lengths is None:
        lengths = torch.full((batch,), tokens, device=embeddings.device)
    if lengths.shape != (batch,) or not ((lengths >= 1) & (lengths <= tokens)).all():
        raise UserError(
            f"lengths={lengths.tolist()} must be {batch} numbers from 1 to {tokens}, the tokens of "
            "each text"
        )
    return embeddings + place(embeddings, 0) / lengths[:, None, None].to(embeddings.dtype)


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
