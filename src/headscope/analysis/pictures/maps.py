"""Attention maps: the weight that each query (row) gives to each key (column).

Shapes: H heads, T tokens. Each token is both a query and a key, and has one label. All functions
raise UserError when there is no token or no head, or when shapes or labels do not match.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize, PowerNorm
from matplotlib.figure import Figure
from torch import Tensor

from headscope.analysis.pictures.fonts import picture_label, stacked
from headscope.analysis.pictures.sheet import TEXT, Sheet, array, font_for, limits, numbers
from headscope.analysis.pictures.style import GREY
from headscope.data.labels import reads_down
from headscope.errors import UserError

Labels = Sequence[str]
FEW = 12  # maps of up to this many tokens show numbers in their cells
WEIGHT, DIFFERENCE = "attention weight\n(square-root colour scale)", "difference of weights"
WEIGHT_TICKS = (0, 0.01, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1)


class Map(NamedTuple):
    """A matrix (T, T) with one row per query and one column per key. The square-root colour scale
    of weights makes small weights visible. Other values have a diverging scale around zero."""

    name: str
    values: np.ndarray
    unit: str = WEIGHT


def attention_maps(weights: Tensor, labels: Labels, *, title: str, causal: bool = True) -> Figure:
    """Draw the attention maps of all heads of one layer, from weights (H, T, T). `labels` are
    the texts of the T tokens. If `causal`, the future (above the diagonal) is white."""
    return draw_maps(of_heads(array(weights)), labels, title, causal=causal).finish()


def difference_map(
    first: Tensor, second: Tensor, labels: Labels, *, title: str, names: tuple[str, str]
) -> Figure:
    """Draw the map `first` minus the map `second`, or the maps of each head if both have shape
    (H, T, T). `names` contains a name for `first` and a name for `second`."""
    values = array(first) - array(second)
    maps = [Map("", values, DIFFERENCE)] if values.ndim == 2 else of_heads(values, DIFFERENCE)
    title = f"{title}\nred: more weight in {names[0]}\nblue: more weight in {names[1]}"
    return draw_maps(maps, labels, title).finish()


def single_and_multi_head(
    single: Tensor, multi: Tensor, labels: Labels, *, title: str, names: tuple[str, str]
) -> Figure:
    """Compare the map (T, T) of a single head with the maps (H, T, T) of many heads.

    The first row shows the single head, the mean of the many heads, and the difference. The rows
    below show each of the many heads. `names` contains the names of the two models.
    """
    one, many = array(single), array(multi)
    if not len(many) or one.shape != many.shape[1:]:
        shapes = (
            f"{one.shape} and {many.shape} must be (tokens, tokens) and (heads, tokens, tokens)"
        )
        raise UserError(f"maps of shapes {shapes}: give at least one head and the same tokens")
    mean = many.mean(axis=0)
    first = [Map("single head", one), Map(f"mean of {len(many)} heads", mean)]
    first.append(Map("single head - mean", one - mean, DIFFERENCE))
    columns = max(3, min(4, len(many)))
    maps = [*first, *[None] * (columns - 3), *of_heads(many)]
    title = f"{title}\nsingle head: {names[0]}\nheads: {names[1]}"
    return draw_maps(maps, labels, title, columns=columns).finish()


def of_heads(values: Iterable[np.ndarray], unit: str = WEIGHT) -> list[Map]:
    return [Map(f"head {head}", each, unit) for head, each in enumerate(values)]


def draw_maps(
    maps: Sequence[Map | None], labels: Labels, title: str, causal: bool = True, columns: int = 0
) -> Sheet:
    """Draw maps of the same tokens. None leaves a gap in the grid. Each unit has one colour bar."""
    count, tokens = len(maps), len(labels)
    shapes = {each.values.shape for each in maps if each}
    if not tokens or shapes != {(tokens, tokens)}:
        raise UserError(
            f"maps of shapes {shapes} must be (tokens, tokens), with as many tokens as there are "
            f"labels, {tokens}: give at least one map and at least one label"
        )
    columns = columns or math.ceil(count / math.isqrt(count))
    room = max(320, min(512, 1120 // columns, 44 * tokens if tokens <= FEW else 512))
    cell = max(1, room // tokens)
    sheet = Sheet(count, columns, cell * tokens, cell * tokens, title)
    future = np.triu(np.ones((tokens, tokens), dtype=bool), 1) & causal
    others = [each.values[~future] for each in maps if each and each.unit != WEIGHT]
    diverging = Normalize(*limits(np.array(others), diverging=True))
    square_root = PowerNorm(0.5, vmin=0, vmax=1)
    with_bar = set()
    for number, (panel, each) in enumerate(zip(sheet.panels, maps, strict=True)):
        if each is None:
            panel.remove()
            continue
        norm = square_root if each.unit == WEIGHT else diverging
        panel.set(xticks=[], yticks=[])
        if number % columns == 0:
            name_tokens(panel, labels, cell, down=True)
        if number + columns >= count or maps[number + columns] is None:
            name_tokens(panel, labels, cell, down=False)
        image = sheet.heatmap(panel, each.name, np.where(future, np.nan, each.values), norm)
        if tokens <= FEW:
            sheet.write(image, np.where(future, "", numbers(each.values)), cell)
        if causal:
            # Draw a border around the past: a difference of zero is as white as the future.
            panel.set_autoscale_on(False)
            edges = np.arange(tokens + 1) - 0.5
            panel.stairs(edges[:-1], edges, baseline=None, color=GREY, linewidth=0.6)
            panel.spines[["left", "bottom"]].set(visible=True, color=GREY, linewidth=0.6)
        last = (number + 1) % columns == 0 or number + 1 == count or maps[number + 1] is None
        if last and each.unit not in with_bar:
            with_bar.add(each.unit)
            sheet.bar(image, each.unit, WEIGHT_TICKS if each.unit == WEIGHT else None)
    return sheet


def name_tokens(panel: Axes, labels: Labels, cell: float, *, down: bool) -> None:
    """Label the queries if `down`, otherwise the keys. If there is little room, label only every
    n-th token. The labels of keys are rotated, except labels with a Chinese character: their
    characters are written below one another."""
    size = min(TEXT, max(7.5, cell - 1))
    every = math.ceil((size + 0.5) / cell)
    texts = [picture_label(label) for label in labels[::every]]
    ticks, font = range(0, len(labels), every), font_for(size, *texts)
    if down:
        panel.set_yticks(ticks, texts, **font)
        panel.set_ylabel("query: the token that looks")
        return
    columns = [stacked(text) if reads_down(text) else text for text in texts]
    panel.set_xticks(ticks, columns, linespacing=1, **font)
    for label, text in zip(panel.get_xticklabels(), texts, strict=True):
        label.set_rotation(0 if reads_down(text) else 90)
    panel.set_xlabel("key: the token it looks at")
