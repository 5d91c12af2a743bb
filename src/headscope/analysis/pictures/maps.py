"""Attention maps: which token each query looks at.

Shapes: H heads, T tokens, each a query (down) and a key (across).
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import Normalize, PowerNorm, to_hex
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from torch import Tensor

from headscope.analysis.pictures.fonts import EM_ASCENT, font_properties
from headscope.analysis.pictures.labels import picture_label
from headscope.analysis.pictures.sheet import (
    BAR_ROOM,
    DIVERGING,
    SMALL,
    TEXT,
    Sheet,
    array,
    limits,
    numbers,
    text_width,
    write_numbers,
)
from headscope.analysis.pictures.style import COLOURS
from headscope.data.labels import reads_down, runs_down
from headscope.errors import UserError

FEW = 12
"""So many tokens at most have their numbers in the cells."""

TICK_PAD = 4
"""Points between a map and its labels."""

WEIGHT_TICKS = (0, 0.01, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1)

DIAGONALS: dict[str, tuple[int, str, Any]] = {  # how far behind the query the key stands
    "self": (0, COLOURS[3], "-"),
    "previous token": (1, COLOURS[5], (0, (3, 1))),
    "next token": (-1, COLOURS[4], (0, (1, 1))),
}


def attention_maps(
    weights: Tensor, labels: Sequence[str], *, title: str, causal: bool = True
) -> Figure:
    """All heads of one layer, from their weights (H, T, T), whose rows sum to one.

    `labels` are those of `token_labels`, or texts; see `picture_label`. Causal weights leave what
    lies above the diagonal, the future, white. Up to FEW tokens have their weights written in the
    cells.

    Raises UserError when there is no token or no head, or the labels are not T.
    """
    names = [f"head {head}" for head in range(len(weights))]
    return draw(array(weights), names, labels, title, causal)


def mean_map(weights: Tensor, labels: Sequence[str], *, title: str, causal: bool = True) -> Figure:
    """The mean over heads of weights (H, T, T), with the neighbour diagonals marked.

    Raises UserError as `attention_maps` does.
    """
    heads = len(weights)
    maps = array(weights).mean(axis=0, keepdims=True) if heads else array(weights)
    figure = draw(maps, [f"mean of {heads} heads" if heads > 1 else ""], labels, title, causal)
    mark_diagonals(figure.axes[0], len(labels), causal)
    return figure


def difference_map(
    first: Tensor,
    second: Tensor,
    labels: Sequence[str],
    *,
    title: str,
    names: tuple[str, str],
    causal: bool = True,
) -> Figure:
    """One map (T, T), or each of some heads (H, T, T), minus another over the same tokens; zero is
    in the middle of the colours.

    `names` say what the two are. Raises UserError as `attention_maps` does.
    """
    difference = array(first) - array(second)
    one = difference.ndim == 2
    maps = difference[None] if one else difference
    panels = [""] if one else [f"head {head}" for head in range(len(maps))]
    colours = colormaps[DIVERGING]
    notes = [
        (to_hex(colours(0.9)), f"more weight in {names[0]}"),
        (to_hex(colours(0.1)), f"more weight in {names[1]}"),
    ]
    return draw(maps, panels, labels, title, causal, notes)


def mark_diagonals(panel: Axes, tokens: int, causal: bool = True) -> None:
    """Outline the cells where a query looks at itself, at the token before it and, when the
    future can be seen, at the one after; a legend stands above the map on the right."""
    handles = []
    for name, (behind, colour, style) in DIAGONALS.items():
        if tokens <= abs(behind) or (causal and behind < 0):
            continue
        query = np.arange(max(0, behind), tokens + min(0, behind))
        centre = np.stack([query - behind, query], axis=-1)  # (cells, 2): across, down
        corner = 0.4 * np.array([(-1, -1), (1, -1), (1, 1), (-1, 1)])
        cells = PolyCollection(
            list(centre[:, None] + corner), facecolor="none", edgecolor=colour, linestyle=style
        )
        panel.add_collection(cells, autolim=False)
        handles.append(Line2D([], [], color=colour, linestyle=style, label=name))
    panel.legend(
        handles=handles,
        loc="lower right",
        bbox_to_anchor=(1, 1),
        borderaxespad=0.2,
        borderpad=0,
        ncols=len(handles),
        frameon=False,
        fontsize=SMALL,
        handlelength=1.6,
        columnspacing=1.2,
    )


def draw(
    maps: np.ndarray,
    names: Sequence[str],
    labels: Sequence[str],
    title: str,
    causal: bool,
    notes: Sequence[tuple[str, str]] | None = None,
) -> Figure:
    """Maps (N, T, T) side by side, each below its name; with notes they are differences."""
    count, tokens = len(maps), len(labels)
    if count < 1 or tokens < 1 or maps.shape[1:] != (tokens, tokens):
        raise UserError(
            f"maps of shape {maps.shape} must be (heads, tokens, tokens) with at least one head "
            f"and as many tokens as there are labels, {tokens}, at least one"
        )
    rows = math.isqrt(count)
    columns = math.ceil(count / rows)
    room = max(320, min(512, 1120 // columns, 44 * tokens if tokens <= FEW else 512))
    drawing = TokenMaps(labels, room, causal)
    shown = drawing.visible(maps)
    sheet = drawing.sheet(rows, columns, title, notes or ())
    differ = notes is not None
    scale = limits(shown, diverging=True) if differ else None
    for number, (name, values) in enumerate(zip(names, shown, strict=True)):
        place = divmod(number, columns)
        image = drawing.panel(sheet, place, values, name, scale, last=number + columns >= count)
    drawing.bar(sheet, image, 0, columns, differ)
    return sheet.figure


class TokenMaps:
    """Maps over the same T tokens in rows of equal squares: sizes in points, labels, colours.

    `room` is how wide a map may be; each cell is a whole number of points.
    """

    GAP, NAME_ROOM = 34, 20
    """Between two maps, and what the name above a map takes."""

    def __init__(self, labels: Sequence[str], room: int, causal: bool) -> None:
        self.tokens, self.causal = len(labels), causal
        self.cell = max(1, room // self.tokens)
        self.side = self.cell * self.tokens
        self.pitch = self.side + self.GAP
        self.size = min(TEXT, max(7.5, self.cell - 1))
        every = math.ceil((self.size + 0.5) / self.cell)
        self.ticks = range(0, self.tokens, every)
        self.texts = [picture_label(text) for text in labels[::every]]
        self.longest = max(points_down(text, self.size) for text in self.texts)
        widest = max(text_width(text, self.size) for text in self.texts)
        self.margin = 26 + max(self.longest, widest)

    def visible(self, maps: np.ndarray) -> np.ndarray:
        """Maps (..., T, T) with NaN, which is left white, for the future of causal ones."""
        future = np.triu(np.ones((self.tokens, self.tokens), dtype=bool), 1) & self.causal
        return np.where(future, np.nan, maps)

    def sheet(self, rows: int, columns: int, title: str, notes: Sequence[tuple[str, str]]) -> Sheet:
        """A figure with room for so many maps, and for colour bars on the right."""
        width = self.margin + columns * self.pitch - self.GAP + BAR_ROOM + 28
        height = rows * self.pitch - self.GAP + self.NAME_ROOM + self.margin
        return Sheet(width, height, title, notes)

    def panel(
        self,
        sheet: Sheet,
        place: tuple[int, int],
        values: np.ndarray,
        name: str,
        scale: tuple[float, float] | None,
        *,
        last: bool,
    ) -> AxesImage:
        """Draw a map at `place`, a row and a column, below its name.

        Weights have the square-root colours from 0 to 1; a linear scale would sink 1/32 and less
        into the dark. Differences have the diverging colours of `scale`. The first map of a row
        names the queries, the `last` of a column the keys. Up to FEW tokens have numbers.
        """
        row, column = place
        x, y = self.margin + column * self.pitch, self.NAME_ROOM + row * self.pitch
        panel = sheet.axes(x, y, self.side, self.side)
        image = panel.imshow(
            values,
            norm=PowerNorm(0.5, vmin=0, vmax=1) if scale is None else Normalize(*scale),
            cmap="viridis" if scale is None else DIVERGING,
            aspect="auto",
            interpolation="nearest",
            interpolation_stage="rgba",  # colours T x T weights, not every pixel
        )
        panel.set_title(name, loc="left", fontsize=TEXT, pad=4)
        panel.set(xticks=[], yticks=[])
        if self.causal:
            edge_of_the_past(panel, self.tokens)
        if self.tokens <= FEW:
            cells = np.where(np.isnan(values), "", numbers(values))
            write_numbers(panel, image, cells, self.cell, TEXT)
        if column == 0:
            font = font_properties(self.size, self.texts)
            panel.set_yticks(self.ticks, self.texts, fontproperties=font, parse_math=False)
            panel.set_ylabel("query: the token that looks", fontsize=SMALL)
        if last:
            for tick, text in zip(self.ticks, self.texts, strict=True):
                write_down(panel, tick, text, self.size)
            words = "key: the token it looks at"
            panel.set_xlabel(words, fontsize=SMALL, labelpad=TICK_PAD + self.longest + 3)
        return image

    def bar(self, sheet: Sheet, image: AxesImage, row: int, columns: int, differ: bool) -> None:
        """The colour scale of `image`, right of the maps of a row."""
        weights = "attention weight\n(square-root colour scale)"
        label, ticks = ("difference of weights", None) if differ else (weights, WEIGHT_TICKS)
        x = self.margin + columns * self.pitch - self.GAP + 18
        y = self.NAME_ROOM + row * self.pitch
        sheet.bar(image, x, y, min(360, self.side), label, ticks)


def points_down(text: str, size: float) -> float:
    """Points that a label below a panel takes; see `write_down`."""
    if not reads_down(text):
        return text_width(text, size)
    return sum(size if stands else text_width(run, size) for run, stands in runs_down(text))


def write_down(panel: Axes, x: float, text: str, size: float) -> None:
    """A label below a panel that reads from below or, with Chinese characters, from above: these
    upright, all others turned to the right."""
    from_above = reads_down(text)
    y: float = -TICK_PAD
    for run, stands in runs_down(text) if from_above else [(text, False)]:
        panel.annotate(
            run,
            (x, 0),
            xycoords=panel.get_xaxis_transform(),
            xytext=(0, y - EM_ASCENT * size if stands else y),
            textcoords="offset points",
            rotation=0 if stands else -90 if from_above else 90,
            ha="center",
            va="baseline" if stands else "top",
            fontproperties=font_properties(size, [run]),
            parse_math=False,
            annotation_clip=False,
        )
        y -= size if stands else text_width(run, size)


def edge_of_the_past(panel: Axes, tokens: int) -> None:
    """A thin line around what a causal query can see, as zero may be as white as the future."""
    steps = np.repeat(np.arange(tokens + 1), 2) - 0.5
    across = np.concatenate([[-0.5], steps[2:], [-0.5]])
    down = np.concatenate([steps[:-1], [tokens - 0.5]])
    panel.plot(
        across, down, color="#999999", linewidth=0.6, clip_on=False, scalex=False, scaley=False
    )
