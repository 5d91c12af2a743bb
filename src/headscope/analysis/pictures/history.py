"""How figures of heads moved while a model was trained.

Shapes: S checkpoints, L layers, H heads of a layer.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter, StrMethodFormatter
from torch import Tensor

from headscope.analysis.pictures.heads import some
from headscope.analysis.pictures.sheet import LINE, SMALL, TEXT, Sheet, array, ticked, wrapped
from headscope.analysis.pictures.style import COLOURS


def history(steps: Sequence[int], figures: Mapping[str, Tensor], *, title: str) -> Figure:
    """How every named figure (S, L, H) moved over checkpoints at S steps: a line for each head, its
    colour the layer's. Steps stand as they are, or by their logarithm when so they lie more evenly.
    """
    every = {name: array(values) for name, values in some(figures).items()}
    layers = max(values.shape[1] for values in every.values())
    columns = min(len(every), 2 if len(every) < 5 else 3)
    rows = math.ceil(len(every) / columns)
    names = [wrapped(name, 300, TEXT) for name in every]
    name_room = LINE * TEXT * max(map(len, names)) + 4
    across, down, left = 300 + 70, name_room + 190 + 48, 42
    key_columns = math.ceil(layers / 14)
    right = left + columns * across - 70
    sheet = Sheet(right + 26 + 70 * key_columns, rows * down - 14, title)
    for number, (values, name) in enumerate(zip(every.values(), names, strict=True)):
        row, column = divmod(number, columns)
        x, y = left + column * across, row * down + name_room
        panel = sheet.axes(x, y, 300, 190)
        sheet.write_above(x, y, name)
        for layer, head in np.ndindex(values.shape[1:]):
            panel.plot(steps, values[:, layer, head], **style_of(layer, len(steps)))
        ticked(panel, whole="x")
        step_axis(panel, steps)
    sheet.figure.legend(
        handles=[
            Line2D([], [], label=f"layer {layer}", **style_of(layer, len(steps)))
            for layer in range(layers)
        ],
        title="a line is a head",
        title_fontsize=SMALL,
        loc="upper left",
        bbox_to_anchor=sheet.share(right + 14, name_room),
        borderaxespad=0,
        frameon=False,
        fontsize=SMALL,
        ncols=key_columns,
    )
    return sheet.figure


def style_of(layer: int, points: int) -> dict:
    """The line of a layer's heads; a mark at every checkpoint when these are few."""
    return {
        "color": COLOURS[layer % len(COLOURS)],
        "linestyle": ["-", "--", ":"][layer // len(COLOURS) % 3],
        "linewidth": 1.4,
        "alpha": 0.85,
        "marker": "o" if points <= 12 else "",
        "markersize": 3,
    }


def step_axis(panel: Axes, steps: Sequence[int]) -> None:
    """Training steps across, by their logarithm when so the checkpoints lie more evenly."""
    panel.set_xlabel("training step", fontsize=SMALL)
    at = np.unique(np.asarray(steps, dtype=float))
    above = at[at > 0]
    if len(above) < 3 or unevenness(np.log(above)) >= unevenness(above):
        return
    if at[0] > 0:
        panel.set_xscale("log")
    else:  # the logarithm has no place for step 0
        panel.set_xscale("symlog", linthresh=above[0], linscale=0.4)
    panel.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    panel.xaxis.set_minor_formatter(NullFormatter())
    panel.set_xlabel("training step (logarithmic)", fontsize=SMALL)


def unevenness(places: np.ndarray) -> float:
    """The spread of the gaps between rising places, in their mean."""
    gaps = np.diff(places)
    return float(gaps.std() / gaps.mean())
