"""What a position encoding is, drawn: its table, its biases, or the turn it gives.

Shapes: P block_size, C embed_dim, H heads, D head_dim.
"""

from collections.abc import Sequence
from functools import singledispatch

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn.functional import normalize

from headscope.analysis.pictures.maps import FEW
from headscope.analysis.pictures.panels import Panels
from headscope.analysis.pictures.sheet import array, limits
from headscope.errors import UserError
from headscope.nn import (
    Alibi,
    Digits,
    HeadBias,
    Index,
    Learned,
    NoPosition,
    Normalized,
    Position,
    Relative,
    Rotary,
    Sinusoidal,
)
from headscope.nn.position.base import distances

DISTANCE = "distance, in tokens (key before query)"


@singledispatch
def position_picture(position: Position) -> Figure | None:
    """What `position` is; None for one that is nothing.

    A table that is added: all of it, some of its dimensions as curves, and how alike two positions
    are. A bias: what each head adds to the score of a key at a distance, and the weights that
    would come of the bias alone. Raises TypeError for an encoding that has no picture here.
    """
    raise TypeError(f"{type(position).__name__} has no picture: register one for position_picture")


@position_picture.register
def _none(position: NoPosition) -> None:
    return None


@position_picture.register
def _learned(position: Learned) -> Figure:
    table = array(position.table.weight)
    most = np.argsort(-table.std(axis=0), kind="stable")[:4]
    return table_picture("Learned positions", table, sorted(most), "the four that vary most")


@position_picture.register
def _sinusoidal(position: Sinusoidal) -> Figure:
    width = position.embed_dim
    dimensions = sorted({2 * (width * share // 16) for share in range(4)})
    return table_picture(
        "Sinusoidal positions", array(position.table), dimensions, "sines, fast to slow"
    )


@position_picture.register
def _digits(position: Digits) -> Figure:
    table = array(position.table)
    used = max(1, int(np.count_nonzero(table.any(axis=0))))
    rest = f" (0 from dimension {used} on)" if used < position.embed_dim else ""
    return table_picture(
        "Positions written in digits",
        table[:, :used],
        range(min(4, used)),
        "the lowest digits",
        f"The table added to the embeddings{rest}",
    )


def table_picture(
    title: str,
    table: np.ndarray,
    dimensions: Sequence[int],
    which: str,
    caption: str = "The table added to the embeddings",
) -> Figure:
    """A table (P, C): itself, the curves of a few dimensions, and cosines between positions."""
    panels = Panels(3, f"{title}: what is added to the embeddings")
    panels.image(caption, table.T, "position", "dimension")
    names = [f"dim. {dimension}" for dimension in dimensions]
    curves, whole = table.T[list(dimensions)], bool((table == table.round()).all())
    panels.strips(f"Some of its dimensions: {which}", curves, names, "position", steps=whole)
    vectors = normalize(torch.from_numpy(table), dim=-1)
    cosine = (vectors @ vectors.T).numpy()
    blank = ~table.any(axis=1)  # nothing added has no direction
    cosine[blank], cosine[:, blank] = np.nan, np.nan
    ends = (-1.0, 1.0) if np.nanmin(cosine, initial=0) < -1e-6 else (0.0, 1.0)
    note = " (none for position 0: all zeros)" if blank.any() else ""
    panels.image(f"Cosine between two positions{note}", cosine, "position", "position", ends=ends)
    return panels.figure


@position_picture.register
def _index(position: Index) -> Figure:
    return number_picture(position, "Index", "the position itself, from 1")


@position_picture.register
def _normalized(position: Normalized) -> Figure:
    return number_picture(position, "Normalized", f"position / block_size {position.block_size}")


@torch.no_grad()
def number_picture(position: Position, name: str, what: str) -> Figure:
    """One number a position, alike in all dimensions: read off what zeros become."""
    zeros = torch.zeros(1, position.block_size, position.embed_dim)
    added = array(position(zeros))[0, :, :1].T  # (1, P)
    panels = Panels(1, f"{name}: one number for a position, added to every dimension")
    caption = f"{what[0].upper()}{what[1:]}. LayerNorm removes it, RMSNorm keeps it"
    panels.curves(caption, added, [name], "position", "what is added")
    return panels.figure


@position_picture.register
def _alibi(position: Alibi) -> Figure:
    return bias_picture(position, "ALiBi: scores fall with distance, in each head at its own slope")


@position_picture.register
def _relative(position: Relative) -> Figure:
    return bias_picture(position, "Relative: a learned bias for every bucket of distances")


@torch.no_grad()
def bias_picture(position: Alibi | Relative, title: str) -> Figure:
    """A bias that depends on distance alone, read off the last query."""
    size = position.block_size
    over_distance = position.bias(size, size)[:, -1].flip(-1)  # (H, P)
    panels = Panels(2, title)
    draw_bias(panels, over_distance, "Added to the score of a key so far before the query")
    heads = head_names(position.heads)
    panels.curves(
        "Weights of the last query, were all scores equal but for this",
        *(array(over_distance.softmax(-1)), heads, DISTANCE, "attention weight"),
    )
    return panels.figure


@position_picture.register
@torch.no_grad()
def _head_bias(position: HeadBias) -> Figure:
    size = position.block_size
    bias = position.bias(size, size)  # (H, P, P)
    over_distance = torch.stack(
        [bias.diagonal(-far, 1, 2).mean(dim=-1) for far in range(size)], dim=-1
    )
    panels = Panels(1 + len(bias), "Head bias: a learned number for each pair of positions")
    draw_bias(panels, over_distance, "Added to the score: mean over pairs so far apart")
    past = array(bias.masked_fill(distances(size, size, bias.device) < 0, torch.nan))
    end = limits(past, diverging=True)
    for head, table in enumerate(past):
        caption = f"Head {head}: added to the score of each pair (future blank)"
        panels.image(caption, table, "key's position", "query's position", ends=end)
    return panels.figure


@torch.no_grad()
def bias_map(position: Position, tokens: int, *, causal: bool = False) -> Figure:
    """What `position` adds to the score of every pair of `tokens` positions, one map per head.

    Both directions are drawn, as attention with `causal=False` uses them: above the diagonal stand
    keys that come after the query. `causal` leaves those blank. Up to FEW tokens have the numbers
    written in the cells.

    Raises UserError when the encoding adds nothing to scores, or `tokens` are more than its
    `block_size`.
    """
    bias = position.bias(tokens, tokens)  # (1 or H, T, T)
    if bias is None:
        raise UserError(
            f"{type(position).__name__} adds nothing to scores: bias_map draws Alibi, Relative and "
            "HeadBias"
        )
    if causal:
        bias = bias.masked_fill(distances(tokens, tokens, bias.device) < 0, torch.nan)
    maps = array(bias)
    ends = limits(maps, diverging=True)
    direction = "keys before the query" if causal else "keys before and after the query"
    panels = Panels(len(maps), f"{type(position).__name__}: added to the scores, {direction}")
    for head, values in enumerate(maps):
        panels.image(
            *(f"Head {head}", values, "key's position", "query's position"),
            ends=ends,
            written=tokens <= FEW,
        )
    return panels.figure


def draw_bias(panels: Panels, over_distance: Tensor, caption: str) -> None:
    names = head_names(len(over_distance))
    panels.curves(caption, array(over_distance), names, DISTANCE, "added to the score")


def head_names(heads: int) -> list[str]:
    return [f"head {head}" for head in range(heads)]


@position_picture.register
@torch.no_grad()
def _rotary(position: Rotary) -> Figure:
    size, width = position.block_size, position.head_dim
    panels = Panels(3, "Rotary: pairs of dimensions of queries and keys are turned by the position")
    cosine = array(position.cos).T  # (D / 2, P)
    panels.image(
        "Cosine of the angle that a pair is turned by",
        *(cosine, "position", "pair of dimensions"),
        ends=(-1.0, 1.0),
    )
    pairs = sorted({share * len(cosine) // 8 for share in range(4)})
    names = [f"pair {pair}" for pair in pairs]
    panels.strips("The same for some pairs", cosine[pairs], names, "position", steps=False)
    ones = torch.ones(1, 1, size, width, device=position.cos.device)
    q, k = position.rotate(ones[:, :, -1:], ones)
    score = (q @ k.transpose(-2, -1))[0, 0].flip(-1) / width  # (1, P): by distance
    panels.curves(
        "q · R(distance) k / head_dim, where q and k are all ones",
        *(array(score), ["score"], DISTANCE, "score, 1 at distance 0"),
    )
    return panels.figure
