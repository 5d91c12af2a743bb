"""Attention maps: which token each query looks at.

Shapes: H heads, T tokens, each a query (down) and a key (across).
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize, PowerNorm
from matplotlib.figure import Figure
from torch import Tensor

from headscope.analysis.pictures.labels import picture_label, stacked
from headscope.analysis.pictures.sheet import (
    SMALL,
    TEXT,
    Sheet,
    array,
    font_for,
    heatmap,
    limits,
    numbers,
    write,
)
from headscope.analysis.pictures.style import COLOURS, GREY
from headscope.data.labels import reads_down
from headscope.errors import UserError

FEW = 12
"""Maps of at most so many tokens have numbers in their cells."""

WEIGHT, DIFFERENCE = "attention weight\n(square-root colour scale)", "difference of weights"
WEIGHT_TICKS = (0, 0.01, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1)


DIAGONALS = (("self", "s", COLOURS[3]), ("previous token", "o", COLOURS[5]))


class Map(NamedTuple):
    """A matrix (T, T) of queries by keys below its name. Values of the unit WEIGHT have square-root
    colours from 0 to 1, as a linear scale would make 1/32 and less all dark; others have diverging
    colours with zero in the middle."""

    name: str
    values: np.ndarray
    unit: str = WEIGHT


def attention_maps(
    weights: Tensor, labels: Sequence[str], *, title: str, causal: bool = True
) -> Figure:
    """All heads of one layer, from their weights (H, T, T), whose rows sum to one.

    `labels` are those of `token_labels`, or texts; see `picture_label`. With causal weights the
    future, above the diagonal, stays white. Up to FEW tokens have their weights written in the
    cells. Raises UserError when there is no token or no head, or when there are not T labels.
    """
    return draw_maps(of_heads(array(weights)), labels, title, causal=causal).finish()


def mean_map(weights: Tensor, labels: Sequence[str], *, title: str) -> Figure:
    """The mean over heads of weights (H, T, T), with the neighbour diagonals marked.

    Raises UserError as `attention_maps` does.
    """
    heads = len(weights)
    name = f"mean of {heads} heads" if heads > 1 else ""
    maps = [Map(name, array(weights).mean(axis=0))] if heads else []
    sheet = draw_maps(maps, labels, title)
    mark_diagonals(sheet, len(labels))
    return sheet.finish()


def difference_map(
    first: Tensor, second: Tensor, labels: Sequence[str], *, title: str, names: tuple[str, str]
) -> Figure:
    """One map (T, T), or each of some heads (H, T, T), minus another over the same tokens; zero is
    in the middle of the colours. `names` say what the two are.

    Raises UserError as `attention_maps` does.
    """
    values = array(first) - array(second)
    maps = [Map("", values, DIFFERENCE)] if values.ndim == 2 else of_heads(values, DIFFERENCE)
    title = f"{title}\nred: more weight in {names[0]}\nblue: more weight in {names[1]}"
    return draw_maps(maps, labels, title).finish()


def single_and_multi_head(
    single: Tensor, multi: Tensor, labels: Sequence[str], *, title: str, names: tuple[str, str]
) -> Figure:
    """One head's map (T, T) and those of many heads (H, T, T) over the same tokens.

    First row: the single head, the mean of the many, and the single head minus that mean. Below:
    each of the many. `names` say which models the two are of. Raises UserError when the shapes do
    not fit together, or as `attention_maps` does.
    """
    one, many = array(single), array(multi)
    if not len(many) or one.shape != many.shape[1:]:
        raise UserError(
            f"maps of shapes {one.shape} and {many.shape} must be (tokens, tokens) and (heads, "
            "tokens, tokens): give maps over the same tokens, and at least one head"
        )
    mean = many.mean(axis=0)
    first = [Map("single head", one), Map(f"mean of {len(many)} heads", mean)]
    first.append(Map("single head - mean", one - mean, DIFFERENCE))
    columns = max(3, min(4, len(many)))
    title = f"{title}\nsingle head: {names[0]}\nheads: {names[1]}"
    maps = [*first, *[None] * (columns - 3), *of_heads(many)]
    return draw_maps(maps, labels, title, columns=columns).finish()


def of_heads(values: Iterable[np.ndarray], unit: str = WEIGHT) -> list[Map]:
    return [Map(f"head {head}", each, unit) for head, each in enumerate(values)]


def draw_maps(
    maps: Sequence[Map | None],
    labels: Sequence[str],
    title: str,
    causal: bool = True,
    columns: int = 0,
) -> Sheet:
    """Maps over the same tokens side by side, each below its name; None leaves a gap. Maps of the
    same unit share their colours and one colour bar."""
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
    norms: dict[str, Normalize] = {WEIGHT: PowerNorm(0.5, vmin=0, vmax=1)}
    with_bar = set()
    for number, (panel, each) in enumerate(zip(sheet.panels, maps, strict=True)):
        if each is None:
            panel.remove()
            continue
        if each.unit not in norms:
            same = [other.values[~future] for other in maps if other and other.unit == each.unit]
            norms[each.unit] = Normalize(*limits(np.stack(same), diverging=True))
        values = np.where(future, np.nan, each.values)
        panel.set(xticks=[], yticks=[])
        if number % columns == 0:
            name_tokens(panel, labels, cell, down=True)
        if number + columns >= count or maps[number + columns] is None:
            name_tokens(panel, labels, cell, down=False)
        image = heatmap(panel, values, norms[each.unit])
        if tokens <= FEW:
            write(image, np.where(future, "", numbers(values)), cell)
        sheet.name(panel, each.name)
        if causal:  # a line around the past: a difference of zero is as white as the future
            panel.set_autoscale_on(False)
            edges = np.arange(tokens + 1) - 0.5
            panel.stairs(edges[:-1], edges, baseline=None, color=GREY, linewidth=0.6)
            panel.spines[["left", "bottom"]].set(visible=True, color=GREY, linewidth=0.6)
        last = (number + 1) % columns == 0 or number + 1 == count or maps[number + 1] is None
        if last and each.unit not in with_bar:
            with_bar.add(each.unit)
            sheet.bar(image, each.unit, WEIGHT_TICKS if each.unit == WEIGHT else None)
    return sheet


def name_tokens(panel: Axes, labels: Sequence[str], cell: float, *, down: bool) -> None:
    """Label the queries (`down`) or the keys, as many as there is room for.

    A key's label reads from below; one with Chinese characters is a column of upright characters.
    """
    size = min(TEXT, max(7.5, cell - 1))
    every = math.ceil((size + 0.5) / cell)
    texts = [picture_label(label) for label in labels[::every]]
    ticks, font = range(0, len(labels), every), font_for(size, *texts)
    if down:
        panel.set_yticks(ticks, texts, **font)
        panel.set_ylabel("query: the token that looks", fontsize=SMALL)
        return
    columns = [stacked(text) if reads_down(text) else text for text in texts]
    panel.set_xticks(ticks, columns, linespacing=1, **font)
    for label, text in zip(panel.get_xticklabels(), texts, strict=True):
        label.set_rotation(0 if reads_down(text) else 90)
    panel.set_xlabel("key: the token it looks at", fontsize=SMALL)


def mark_diagonals(sheet: Sheet, tokens: int) -> None:
    """Mark the cells where a query looks at itself and at the token before it."""
    [panel], size = sheet.panels, 0.8 * sheet.panel_size[0] / tokens
    for behind, (name, marker, colour) in enumerate(DIAGONALS):
        query = np.arange(behind, tokens)
        [marks] = panel.plot(query - behind, query, marker, color=colour, label=name)
        marks.set(fillstyle="none", markersize=size)
    legend = {"loc": "lower right", "bbox_to_anchor": (1, 1), "frameon": False, "fontsize": SMALL}
    panel.legend(**legend, ncols=2, markerscale=7 / size)
