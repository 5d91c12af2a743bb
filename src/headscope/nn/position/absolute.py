"""Position encodings that are added to the embeddings: learned, sinusoidal, and three predecessors
of sinusoids for teaching, whose docstrings explain their problems.

Shapes: B batch, T tokens, C embed_dim.
"""

import torch
from torch import Tensor, nn

from headscope.errors import UserError
from headscope.nn.checks import check_positive
from headscope.nn.position.base import Position, angles


class Learned(Position):
    """One learned vector per position (Gehring 2017, GPT-2). Parameters: block_size * C."""

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
    """Sines and cosines of decreasing frequency (Vaswani 2017, 3.5).

    At position t, dimension 2i is sin(t / base^(2i / C)), and dimension 2i + 1 is the cosine of the
    same angle. From position t to position t + n, each such pair is rotated by an angle that
    depends on n and i, but not on t.

    Parameters: none. Raises UserError when `base` is not positive or not finite.
    """

    def __init__(self, *, base: float = 10000.0, **sizes: int) -> None:
        super().__init__(**sizes)
        check_positive(base=base)
        table = sinusoidal_table(self.block_size, self.embed_dim, base)
        self.register_buffer("table", table, persistent=False)


def sinusoidal_table(length: int, width: int, base: float = 10000.0) -> Tensor:
    """The table (length, width) of `Sinusoidal`, in float32. An odd width ends with a sine."""
    angle = angles(length, width, base)
    table = torch.empty(length, width, dtype=torch.float64)
    table[:, 0::2] = torch.sin(angle)
    table[:, 1::2] = torch.cos(angle[:, : width // 2])
    return table.float()


class Digits(FixedTable):
    """Adds the digits of the position in the given base. The first position is 0. Each digit is
    added to one dimension, beginning with the lowest digit.

    This encoding is bounded, and no norm removes it. Its problem is that it is not smooth. In base
    2, four digits change between 7 and 8, but only one digit changes between 6 and 7. So
    neighbouring positions may have very different encodings, and distant positions similar ones.
    Sinusoids are a smooth version of this idea: low dimensions change fast, high ones slowly.

    Parameters: none. Raises UserError when `base` is below 2, or when digits outnumber dimensions.
    """

    def __init__(self, *, base: int = 2, **sizes: int) -> None:
        super().__init__(**sizes)
        if base < 2:
            raise UserError(f"base={base} of model/position=digits must be at least 2")
        if base**self.embed_dim < self.block_size:
            problem = f"embed_dim={self.embed_dim} is too small for block_size={self.block_size}"
            raise UserError(f"{problem}: increase model.embed_dim or model.position.base={base}")
        table = digit_table(self.block_size, self.embed_dim, base)
        self.register_buffer("table", table, persistent=False)


def digit_table(length: int, width: int, base: int) -> Tensor:
    """The table (length, width) of `Digits`."""
    table = torch.zeros(length, width)
    for dimension in range(width):
        if base**dimension >= length:
            break
        table[:, dimension] = torch.arange(length) // base**dimension % base
    return table


class Index(Position):
    """Adds the position, 1 to T, to every dimension. Parameters: none. Problems:

    - The added number grows without limit. Embeddings have a standard deviation between 0.02 and
      1, so at position 64 the token embedding contributes little to the sum. In bf16, numbers near
      64 are rounded to multiples of 0.5, so the token embedding is lost.
    - The weights are not trained on the positions of longer sequences.
    - All dimensions get the same number. LayerNorm subtracts the mean over the dimensions, which
      removes this number, so the model trains as if it had no position encoding. With dropout
      before the norm, the rest of the number acts as noise that is larger than the token embedding.
      RMSNorm keeps the position, but the token embedding stays small relative to it.
    """

    def forward(self, embeddings: Tensor, start: int = 0) -> Tensor:
        self.checked_end(embeddings, start)
        return embeddings + position_column(embeddings, start)


class Normalized(Position):
    """Adds position / `block_size`, a number in (0, 1], to every dimension. Parameters: none.
    Problems:

    - Neighbouring positions differ by only 1 / `block_size`. Often, bf16 cannot express this.
    - A model works only with the `block_size` that it was trained with. Dividing by the length of
      each text instead of `block_size` is worse: see `add_position_over_length`.
    - All dimensions get the same number, which LayerNorm removes, as in `Index`.
    """

    limit = "it adds position / block_size, so another block_size changes every token"

    def forward(self, embeddings: Tensor, start: int = 0) -> Tensor:
        self.checked_end(embeddings, start)
        return embeddings + position_column(embeddings, start) / self.block_size


def add_position_over_length(embeddings: Tensor, lengths: Tensor | None = None) -> Tensor:
    """Adds to embeddings (B, T, C) how far each token is into its text: 0 for the first token, 1
    for the last, and 0 if it is the only one. `lengths` (B,) are the numbers of tokens of the texts
    without padding, by default T. Padding after a text gets values above 1.

        >>> zeros = torch.zeros(1, 3, 1)
        >>> add_position_over_length(zeros[:, :2]).flatten()
        tensor([0., 1.])
        >>> add_position_over_length(zeros).flatten()
        tensor([0.0000, 0.5000, 1.0000])

    An appended token changes the encoding of all earlier tokens. So this is only a function, and
    model/position does not offer it:

    - In a causal model, every token would know how many tokens follow. This leaks the future.
    - Cached keys and values would become wrong with every new token.
    - In training, all windows have `block_size` tokens. In sampling, the lengths differ, so the
      encoding differs from the encoding in training.

    Raises UserError when `lengths` does not contain B numbers from 1 to T.
    """
    batch, tokens = embeddings.shape[:2]
    if lengths is None:
        lengths = torch.full((batch,), tokens, device=embeddings.device)
    if lengths.shape != (batch,) or not ((lengths >= 1) & (lengths <= tokens)).all():
        wanted = f"{batch} numbers from 1 to {tokens}: the number of tokens of each text"
        raise UserError(f"lengths={lengths.tolist()} must be {wanted}")
    last = (lengths - 1).clamp(min=1)[:, None, None].to(embeddings.dtype)
    return embeddings + (position_column(embeddings, 0) - 1) / last


def position_column(embeddings: Tensor, start: int) -> Tensor:
    """The positions from start + 1 to start + T, as a column (T, 1)."""
    first, end = start + 1, start + 1 + embeddings.size(1)
    return torch.arange(first, end, device=embeddings.device, dtype=embeddings.dtype)[:, None]
