"""Single-head and multi-head attention over the same text, on one sheet.

Shapes: H heads, T tokens, each a query (down) and a key (across).
"""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.colors import Normalize, PowerNorm
from matplotlib.figure import Figure
from torch import Tensor

from headscope.analysis.pictures.labels import token_label
from headscope.analysis.pictures.maps import FEW, WEIGHT_TICKS, edge_of_the_past
from headscope.analysis.pictures.sheet import (
    BAR_ROOM,
    DIVERGING,
    SMALL,
    TEXT,
    Sheet,
    array,
    font_of,
    limits,
    numbers,
    text_width,
    write_numbers,
)
from headscope.errors import UserError

GAP, NAME_ROOM = 34, 20
"""Points between two maps, and what the name above a map takes."""


def single_and_multi_head(
    single: Tensor,
    multi: Tensor,
    labels: Sequence[str],
    *,
    title: str,
    names: tuple[str, str],
    causal: bool = True,
) -> Figure:
    """One head's map (T, T) and those of many heads (H, T, T) over the same tokens.

    First row: the single head, the mean of the many, and the single head minus that mean, with zero
    in the middle of its colours. Below: each of the many. `names` say which models the two are of.
    Causal maps leave the future white. Up to FEW tokens have numbers written in the cells.

    Raises UserError when the shapes do not fit together, or `labels` are not T.
    """
    tokens, heads = len(labels), len(multi)
    if not tokens or single.shape != (tokens, tokens) or multi.shape != (heads, tokens, tokens):
        raise UserError(
            f"maps of shapes {tuple(single.shape)} and {tuple(multi.shape)} must be (tokens, "
            f"tokens) and (heads, tokens, tokens) for the {tokens} labels that were given"
        )
    if not heads:
        raise UserError("there are no heads to compare with: give at least one map")
    one, many = array(single), array(multi)
    mean = many.mean(axis=0)
    maps = [
        ("single head", one),
        (f"mean of {heads} heads", mean),
        ("single head - mean", one - mean),
        *((f"head {head}", weights) for head, weights in enumerate(many)),
    ]
    columns = max(3, min(4, heads))
    places = [(0, 0), (0, 1), (0, 2)] + [
        (1 + head // columns, head % columns) for head in range(heads)
    ]
    rows = 1 + math.ceil(heads / columns)

    side = max(220, min(1120 // columns, 44 * tokens if tokens <= FEW else 360))
    cell = max(1, side // tokens)
    side = cell * tokens
    size = min(TEXT, max(7.5, cell - 1))
    every = math.ceil((size + 0.5) / cell)
    ticks, texts = range(0, tokens, every), [token_label(text) for text in labels[::every]]
    margin = 26 + max(text_width(text, size) for text in texts)
    pitch = side + GAP
    width = margin + columns * pitch - GAP + BAR_ROOM + 28
    notes = [("", f"single head: {names[0]}"), ("", f"heads: {names[1]}")]
    sheet = Sheet(width, rows * pitch - GAP + NAME_ROOM + margin, title, notes)

    future = np.triu(np.ones((tokens, tokens), dtype=bool), 1) & causal
    images = {}
    for (name, values), (row, column) in zip(maps, places, strict=True):
        shown = np.where(future, np.nan, values)
        differ = name == "single head - mean"
        panel = sheet.axes(margin + column * pitch, NAME_ROOM + row * pitch, side, side)
        images[differ] = image = panel.imshow(
            shown,
            norm=Normalize(*limits(shown, diverging=True)) if differ else PowerNorm(0.5, 0, 1),
            cmap=DIVERGING if differ else "viridis",
            aspect="auto",
            interpolation="nearest",
            interpolation_stage="rgba",
        )
        panel.set_title(name, loc="left", fontsize=TEXT, pad=4)
        panel.set(xticks=[], yticks=[])
        if causal:
            edge_of_the_past(panel, tokens)
        if tokens <= FEW:
            cells = np.where(np.isnan(shown), "", numbers(shown))
            write_numbers(panel, image, cells, cell, TEXT)
        if column == 0:
            panel.set_yticks(ticks, texts, fontproperties=font_of(size), parse_math=False)
            panel.set_ylabel("query", fontsize=SMALL)
        if (row + 1, column) not in places:
            panel.set_xticks(
                ticks, texts, fontproperties=font_of(size), parse_math=False, rotation=90
            )
            panel.set_xlabel("key", fontsize=SMALL)
    bar_x, tall = margin + columns * pitch - GAP + 18, min(360, side)
    weight_label = "attention weight\n(square-root colour scale)"
    sheet.bar(images[False], bar_x, NAME_ROOM + pitch, tall, weight_label, WEIGHT_TICKS)
    sheet.bar(images[True], bar_x, NAME_ROOM, tall, "difference of weights")
    return sheet.figure
