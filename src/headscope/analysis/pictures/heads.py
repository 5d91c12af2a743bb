"""Figures of heads: one number for each, and how alike two heads are.

Shapes: L layers, H heads of a layer, N = L * H heads of a model.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize, SymLogNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from torch import Tensor

from headscope.analysis.pictures.labels import readable
from headscope.analysis.pictures.sheet import (
    SMALL,
    Sheet,
    array,
    font_for,
    heatmap,
    limits,
    numbers,
    ticked,
    write,
)
from headscope.analysis.pictures.style import BLUE, ORANGE
from headscope.errors import UserError

Names = Sequence[str]
NARROWEST = 0.01
"""The least width of a histogram: similarities may differ by rounding alone."""


def arrays(figures: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    if not figures:
        raise UserError("there must be at least one figure to draw")
    return {name: array(values) for name, values in figures.items()}


def changes_of_heads(values: Tensor, *, title: str, label: str) -> Figure:
    """A change that each head makes, (L, H), above or below zero, written on its colour; `label`
    says what it is, and its unit.

    Zero is the middle of the colours, which are linear up to the median size of the changes and
    logarithmic beyond: one head that changes far more than the others does not hide them.
    """
    cells = array(values)
    sizes = np.abs(cells[np.isfinite(cells)])
    most = float(sizes.max(initial=0)) or 1.0
    linear = min(max(float(np.median(sizes)) if sizes.size else most, most / 1000), most)
    norm = SymLogNorm(linthresh=linear, vmin=-most, vmax=most, base=10)
    texts = numbers(cells, "z.2g")
    sheet = Sheet(1, 1, *size_of(texts, 280), title)
    image = table(sheet.panels[0], cells, norm, texts)
    sheet.name(sheet.panels[0], label)
    first, last = math.ceil(math.log10(linear)), math.floor(math.log10(most))
    powers = [10.0**power for power in range(first, last + 1)][-4:]
    ticks = [*(-power for power in reversed(powers)), 0.0, *powers]
    sheet.bar(image, ticks=ticks if powers else None)
    return sheet.finish()


def heatmaps_of(
    figures: Mapping[str, Tensor],
    *,
    title: str,
    ends: Mapping[str, tuple[float, float]] | None = None,
    marks: Mapping[str, float] | None = None,
) -> Figure:
    """A heatmap of every named figure (L, H), each with its own colour scale.

    `ends` are the two ends of a figure's scale, its least and greatest value unless given; beyond
    them the colour is that of the end. `marks` is the value of uniform attention, which a line on
    the scale and a number beside the name show.
    """
    every, ends, marks = arrays(figures), ends or {}, marks or {}
    texts = {name: numbers(cells) for name, cells in every.items()}
    width, height = np.max([size_of(each, 150) for each in texts.values()], axis=0)
    columns = max(1, round(math.sqrt(len(every) * (height + 70) / (width + 90) * 1.5)))
    sheet = Sheet(len(every), columns, width, height, title)
    for panel, (name, cells) in zip(sheet.panels, every.items(), strict=True):
        norm = Normalize(*ends.get(name, limits(cells)))
        bar = sheet.bar(table(panel, cells, norm, texts[name]))
        sheet.name(panel, f"{name}  ({marks[name]:.3g})" if name in marks else name)
        if name in marks:
            bar.axhline(marks[name], color=ORANGE, linewidth=2)
    if marks:
        line = Line2D([], [], color=ORANGE, linewidth=2, label="uniform attention (in brackets)")
        sheet.figure.legend(handles=[line], loc="outside lower left", frameon=False)
    return sheet.finish()


def size_of(texts: np.ndarray, narrowest: float) -> tuple[float, float]:
    """Points that a table of texts (L, H) takes, wide enough for the longest."""
    if texts.ndim != 2 or not texts.size:
        raise UserError(f"a figure of shape {texts.shape} must be (layers, heads), not empty")
    wide = max(38, 0.65 * SMALL * max(map(len, texts.flat)) + 10)
    return max(narrowest, wide * texts.shape[1]), max(60, 26 * texts.shape[0])


def table(panel: Axes, cells: np.ndarray, norm: Normalize, texts: np.ndarray) -> AxesImage:
    """Cells (L, H) with their texts, layers down and heads across."""
    layers, heads = map(range, cells.shape)
    panel.set_xticks(heads, map(str, heads))
    panel.set_yticks(layers, map(str, layers))
    panel.set_xlabel("head", fontsize=SMALL)
    panel.set_ylabel("layer", fontsize=SMALL)
    image = heatmap(panel, cells, norm)
    write(image, texts)
    return image


def similarity_matrix(
    similarity: Tensor, names: Names, *, title: str, label: str = "similarity"
) -> Figure:
    """How alike any two of N heads are, (N, N).

    `names` are as L0H1; a line separates the layers. Up to 16 heads have their numbers written. The
    scale is from 0 to 1, or from -1 to 1 when any number is below 0, and wider when they are.
    """
    cells, count = array(similarity), len(names)
    if cells.shape != (count, count) or not count:
        raise UserError(f"{cells.shape=} must be (heads, heads), with a name for each: {count}")
    finite = cells[np.isfinite(cells)]
    reach = max(1.0, round(float(np.abs(finite).max(initial=0)), 3))  # 1.0000001 is 1
    norm = Normalize(-reach if (finite < 0).any() else 0, reach)
    return _matrix(cells, names, names, norm, title, label)


def figures_of_heads(values: Tensor, rows: Names, names: Names, *, title: str) -> Figure:
    """Figures (R, N) from 0 to 1, called `rows`, of N heads; `names` as in `similarity_matrix`."""
    label = "from the first number in brackets (dark) to the second (bright)"
    return _matrix(array(values), rows, names, Normalize(0, 1), title, label)


def _matrix(
    cells: np.ndarray, rows: Names, names: Names, norm: Normalize, title: str, label: str
) -> Figure:
    cell = max(3, min(30, 560 // len(names))) if len(names) > 6 else 240 / len(names)
    high = cell if rows is names else 20
    sheet = Sheet(1, 1, cell * len(names), high * len(rows), title)
    [panel] = sheet.panels
    for axis, every, room in (panel.xaxis, names, cell), (panel.yaxis, rows, high):
        step = math.ceil((SMALL + 1) / room)
        texts = [readable(name) for name in every[::step]]
        axis.set_ticks(range(0, len(every), step), texts, **font_for(SMALL, *texts))
    panel.tick_params(axis="x", rotation=90)
    image = heatmap(panel, cells, norm)
    if len(names) <= 16:
        write(image, numbers(cells), cell)
    for number, (before, name) in enumerate(pairwise(names)):
        if before.partition("H")[0] != name.partition("H")[0]:
            for line in [panel.axvline] + [panel.axhline] * (rows is names):
                line(number + 0.5, color="black" if norm.vmin else "#e0e0e0", linewidth=1.2)
    sheet.name(panel, label)
    sheet.bar(image)
    return sheet.finish()


def similarity_histogram(
    similarity: Tensor, *, title: str, label: str = "similarity of two heads"
) -> Figure:
    """How often two of N heads are so alike, of a symmetric (N, N); the mean is marked."""
    cells = array(similarity)
    pairs = cells[np.triu_indices(len(cells), k=1)].astype(np.float64)
    pairs = pairs[np.isfinite(pairs)]
    sheet = Sheet(1, 1, 424, 220 if pairs.size else 20, title)
    [panel] = sheet.panels
    if not pairs.size:
        panel.set_axis_off()
        sheet.name(panel, "There are no two heads to compare.")
        return sheet.finish()
    middle, spread = np.mean(limits(pairs)), np.ptp(limits(pairs))
    ends = middle + max(spread, NARROWEST) * np.array([-0.5, 0.5])
    bins = max(5, min(40, round(2 * math.sqrt(pairs.size))))
    panel.hist(pairs, bins=bins, range=tuple(ends), color=BLUE, edgecolor="white", linewidth=0.5)
    mean = float(pairs.mean())
    panel.axvline(mean, color=ORANGE, linewidth=2)
    what = f"mean of {pairs.size} pairs" if pairs.size > 1 else "one pair"
    sheet.name(panel, f"{label}\norange line: {what}, {mean:.3g}")
    ticked(panel, "similarity", "pairs of heads", whole="y")
    return sheet.finish()
