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
from torch import Tensor

from headscope.analysis.pictures.fonts import font_properties
from headscope.analysis.pictures.sheet import (
    BAR_ROOM,
    DIVERGING,
    LINE,
    SMALL,
    TEXT,
    Sheet,
    array,
    limits,
    numbers,
    readable,
    text_width,
    ticked,
    wrapped,
    write_numbers,
)
from headscope.analysis.pictures.style import BLUE, ORANGE
from headscope.errors import UserError

CELL = 26
MARGIN = 34
"""Points: how high a cell is, and what the ticks and labels of layers or heads take."""
MARKED = "in brackets, and as a line on the colour scale: the value of uniform attention"
NARROWEST = 0.01
"""The least width of a histogram: heads may be alike but for rounding."""


def layers_by_heads(values: Tensor, *, title: str, label: str) -> Figure:
    """One number of every head, (L, H), written on its colour; `label` says what it is, and its
    unit."""
    cells = array(values)
    return _one_table(cells, numbers(cells), Normalize(*limits(cells)), "viridis", title, label)


def changes_of_heads(values: Tensor, *, title: str, label: str) -> Figure:
    """A change that each head makes, (L, H), above or below zero, written on its colour.

    Zero is the middle of the colours, which are linear up to the median size of the changes and
    logarithmic beyond: one head that changes far more than the others does not hide them.
    """
    cells = array(values)
    sizes = np.abs(cells[np.isfinite(cells)])
    most = float(sizes.max(initial=0)) or 1.0
    linear = min(max(float(np.median(sizes)) if sizes.size else most, most / 1000), most)
    norm = SymLogNorm(linthresh=linear, vmin=-most, vmax=most, base=10)
    return _one_table(cells, short_numbers(cells), norm, DIVERGING, title, label)


def _one_table(
    cells: np.ndarray, texts: np.ndarray, norm: Normalize, cmap: str, title: str, label: str
) -> Figure:
    width, height = size_of(texts)
    tall = max(height, 60)
    sheet = Sheet(MARGIN + width + BAR_ROOM, tall + MARGIN, title, [("", label)])
    image = table(sheet.axes(MARGIN, 0, width, height), cells, texts, norm, cmap)
    ticks = signed_ticks(norm) if isinstance(norm, SymLogNorm) else None
    sheet.bar(image, MARGIN + width + 16, 0, min(300, tall), ticks=ticks)
    return sheet.figure


def short_numbers(values: np.ndarray) -> np.ndarray:
    """Values of any shape as texts, each with two digits that count, whatever the others are; a
    dash for what is not finite."""
    texts = [
        "-"
        if not np.isfinite(value)
        else f"{value:z.2g}"
        if abs(value) >= 1e-4
        else f"{value:z.0e}"
        for value in values.flat
    ]
    return np.array(["0" if text == "0e+00" else text for text in texts], dtype=object).reshape(
        values.shape
    )


def signed_ticks(norm: SymLogNorm) -> list[float] | None:
    """Zero and the powers of ten on both sides, where the scale is logarithmic; None where that
    part has none of them."""
    assert norm.vmax is not None
    first, last = math.ceil(math.log10(norm.linthresh)), math.floor(math.log10(norm.vmax))
    powers = [10.0**power for power in range(first, last + 1)][-4:]
    return [*(-power for power in reversed(powers)), 0.0, *powers] if powers else None


def heatmaps_of(
    figures: Mapping[str, Tensor],
    *,
    title: str,
    ends: Mapping[str, tuple[float, float]] | None = None,
    marks: Mapping[str, float] | None = None,
) -> Figure:
    """A heatmap of every named figure (L, H), each with a colour scale of its own.

    `ends` are the two ends of a figure's scale, its least and greatest value unless given; beyond
    them the colour is that of the end. `marks` is the value of uniform attention, which a line on
    the scale and a number beside the name show.
    """
    every = {name: array(values) for name, values in some(figures).items()}
    marks = marks or {}
    sizes = [size_of(numbers(cells)) for cells in every.values()]
    slot = max(150, MARGIN + max(width for width, _ in sizes) + 72)
    names = [
        wrapped(f"{name}  ({marks[name]:.3g})" if name in marks else name, slot - 24, TEXT)
        for name in every
    ]
    name_room = LINE * TEXT * max(map(len, names)) + 4
    down = name_room + max(60, *(height for _, height in sizes)) + MARGIN + 14
    columns = min(len(every), max(1, round(math.sqrt(len(every) * down / slot * 1.5))))
    rows = math.ceil(len(every) / columns)
    notes = [("", MARKED)] if marks else []
    sheet = Sheet(columns * slot, rows * down - 14, title, notes)
    for number, ((figure, cells), name, (width, height)) in enumerate(
        zip(every.items(), names, sizes, strict=True)
    ):
        row, column = divmod(number, columns)
        x, y = column * slot + MARGIN, row * down + name_room
        norm = Normalize(*(ends or {}).get(figure, limits(cells)))
        image = table(sheet.axes(x, y, width, height), cells, numbers(cells), norm, "viridis")
        sheet.write_above(x, y, name)
        bar = sheet.bar(image, x + width + 10, y, min(220, max(60, height)))
        if figure in marks:
            bar.axhline(marks[figure], color=ORANGE, linewidth=2)
    return sheet.figure


def size_of(texts: np.ndarray) -> tuple[float, float]:
    """Points that a table of texts (L, H) takes, wide enough for the longest."""
    if texts.ndim != 2 or not texts.size:
        raise UserError(f"a figure of shape {texts.shape} must be (layers, heads), not empty")
    longest = max(text_width(text, SMALL) for text in texts.flat)
    return max(38, longest + 10) * texts.shape[1], CELL * texts.shape[0]


def table(
    panel: Axes, cells: np.ndarray, texts: np.ndarray, norm: Normalize, cmap: str
) -> AxesImage:
    """Cells (L, H) with their texts, layers down and heads across."""
    image = panel.imshow(cells, norm=norm, cmap=cmap, aspect="auto", interpolation="nearest")
    layers, heads = cells.shape
    panel.set_xticks(range(heads), [str(head) for head in range(heads)], fontsize=SMALL)
    panel.set_yticks(range(layers), [str(layer) for layer in range(layers)], fontsize=SMALL)
    panel.set_xlabel("head", fontsize=SMALL)
    panel.set_ylabel("layer", fontsize=SMALL)
    write_numbers(panel, image, texts, math.inf)
    return image


def similarity_matrix(
    similarity: Tensor, names: Sequence[str], *, title: str, label: str = "similarity"
) -> Figure:
    """How alike any two of N heads are, (N, N).

    `names` are as L0H1; a line stands where another layer begins, that is where what comes before
    the H changes. When there are too many to stand apart, every second, third, ... is shown. Up to
    16 heads have their numbers written. The scale is from 0 to 1, or from -1 to 1 when any number
    is below 0, and wider when they are.
    """
    cells, count = array(similarity), len(names)
    if cells.shape != (count, count) or not count:
        raise UserError(f"{cells.shape=} must be (heads, heads), with a name for each: {count}")
    cell = max(3, min(30, 560 // count)) if count > 6 else 180 / count
    every = math.ceil((SMALL + 1) / cell)
    ticks, texts = range(0, count, every), [readable(name) for name in names[::every]]
    margin = 10 + max(text_width(text, SMALL) for text in texts)
    side = cell * count
    finite = cells[np.isfinite(cells)]
    reach = max(1.0, round(float(np.abs(finite).max(initial=0)), 3))  # 1.0000001 is 1
    negative = bool((finite < 0).any())
    sheet = Sheet(margin + side + BAR_ROOM, side + margin, title, [("", label)])
    panel = sheet.axes(margin, 0, side, side)
    image = panel.imshow(
        cells,
        norm=Normalize(-reach if negative else 0, reach),
        cmap=DIVERGING if negative else "viridis",
        aspect="auto",
        interpolation="nearest",
    )
    font = font_properties(SMALL, texts)
    panel.set_xticks(ticks, texts, rotation=90, fontproperties=font, parse_math=False)
    panel.set_yticks(ticks, texts, fontproperties=font, parse_math=False)
    if count <= 16:
        write_numbers(panel, image, numbers(cells), cell)
    for number, (before, name) in enumerate(pairwise(names)):
        if before.partition("H")[0] != name.partition("H")[0]:
            for line in (panel.axhline, panel.axvline):
                line(number + 0.5, color="black" if negative else "white", linewidth=1.2)
    sheet.bar(image, margin + side + 16, 0, min(320, side))
    return sheet.figure


def similarity_histogram(
    similarity: Tensor, *, title: str, label: str = "similarity of two heads"
) -> Figure:
    """How often two of N heads are so alike, of a symmetric (N, N); the mean is marked."""
    cells = array(similarity)
    pairs = cells[np.triu_indices(len(cells), k=1)].astype(np.float64)
    pairs = pairs[np.isfinite(pairs)]
    if not pairs.size:
        return Sheet(300, 0, title, [("", "There are no two heads to compare.")]).figure
    across = wrapped(label, 420, TEXT)
    sheet = Sheet(480, 262 + LINE * TEXT * len(across), title)
    panel = sheet.axes(46, 20, 424, 220)
    font = font_properties(TEXT, across)
    panel.set_xlabel("\n".join(across), fontproperties=font, parse_math=False)
    panel.set_ylabel("pairs of heads", fontsize=TEXT)
    low, high = limits(pairs)
    if high - low < NARROWEST:
        low, high = (low + high - NARROWEST) / 2, (low + high + NARROWEST) / 2
    bins = max(5, min(40, round(2 * math.sqrt(pairs.size))))
    panel.hist(pairs, bins=bins, range=(low, high), color=BLUE, edgecolor="white", linewidth=0.5)
    mean = float(pairs.mean())
    panel.axvline(mean, color=ORANGE, linewidth=2)
    panel.annotate(
        f"mean of {pairs.size} pairs: {mean:.3g}" if pairs.size > 1 else f"one pair: {mean:.3g}",
        (mean, 1),
        xycoords=("data", "axes fraction"),
        xytext=(0, 5),
        textcoords="offset points",
        ha="left" if mean < (low + high) / 2 else "right",
        color=ORANGE,
        fontsize=TEXT,
    )
    ticked(panel, whole="y")
    return sheet.figure


def some(figures: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    if not figures:
        raise UserError("there must be at least one figure to draw")
    return figures
