"""The names of the weights in our model and in a class of transformers, and how they correspond.

Shapes: C embed_dim, H heads, D head_dim, R rows of a matrix.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class Transform:
    """How a tensor of ours (`split`) becomes one or more tensors of theirs, and back (`join`). If
    `by_row`, there is one tensor, and each of its rows depends only on the same row of the
    other."""

    split: Callable[[Tensor], Sequence[Tensor]]
    join: Callable[[Sequence[Tensor]], Tensor]
    by_row: bool = False


SAME = Transform(split=lambda ours: [ours], join=lambda theirs: theirs[0], by_row=True)

TRANSPOSED = Transform(split=lambda ours: [ours.T], join=lambda theirs: theirs[0].T)
"""GPT-2 stores the weights of linear layers as (inputs, outputs)."""


def parts(*rows: int) -> Transform:
    """Our tensor is the concatenation of theirs, which have these numbers of rows."""
    return Transform(split=lambda ours: ours.split(rows), join=lambda theirs: torch.cat([*theirs]))


@dataclass(frozen=True)
class Link:
    """One parameter of ours, and the tensors of theirs with the same content."""

    ours: str
    theirs: tuple[str, ...]
    transform: Transform = SAME


@dataclass(frozen=True)
class Constant:
    """A tensor that only one side has. With this value it has no effect."""

    shape: tuple[int, ...]
    value: float


@dataclass
class Table:
    """All weights of a model: those that both sides have (`links`), those that only their side has
    (`constants`), and those that only our side has (`our_constants`)."""

    links: list[Link] = field(default_factory=list)
    constants: dict[str, Constant] = field(default_factory=dict)
    our_constants: dict[str, Constant] = field(default_factory=dict)

    def add(self, ours: str, *theirs: str, transform: Transform = SAME) -> None:
        self.links.append(Link(ours, theirs, transform))

    def linear(
        self,
        ours: str,
        theirs: str | dict[str, int],
        *,
        bias: bool,
        their_bias: bool = True,
        rows: int = 0,
        weight: Transform = SAME,
        vector: Transform = SAME,
    ) -> None:
        """A linear layer of ours that is one layer of theirs with this number of rows, or several:
        `theirs` then maps their names to their numbers of rows. `weight` converts the weights,
        `vector` the biases. `bias` and `their_bias` say whether ours and theirs have biases."""
        rows_of = {theirs: rows} if isinstance(theirs, str) else theirs
        self.add(f"{ours}.weight", *(f"{name}.weight" for name in rows_of), transform=weight)
        if bias:
            self.add(f"{ours}.bias", *(f"{name}.bias" for name in rows_of), transform=vector)
        elif their_bias:
            for name, number in rows_of.items():
                self.constants[f"{name}.bias"] = Constant((number,), 0.0)

    def norm(
        self, ours: str, theirs: str, *, width: int, gain: bool = True, bias: bool | None = None
    ) -> None:
        """A norm. `gain` and `bias` say whether ours has gains and biases; if `bias` is None,
        theirs has no biases either."""
        if gain:
            self.add(f"{ours}.weight", f"{theirs}.weight")
        else:
            self.constants[f"{theirs}.weight"] = Constant((width,), 1.0)
        if bias:
            self.add(f"{ours}.bias", f"{theirs}.bias")
        elif bias is not None:
            self.constants[f"{theirs}.bias"] = Constant((width,), 0.0)

    def head(self, name: str, *, tied: bool) -> None:
        if not tied:
            self.add("head.weight", name)
