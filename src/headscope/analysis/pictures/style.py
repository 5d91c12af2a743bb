"""What all pictures and charts have in common: colours, lines, and axes without ornament."""

from typing import Any

from matplotlib.axes import Axes

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7", "#000000")
"""Okabe and Ito's, which the colour-blind can tell apart, without their yellow."""
BLUE, ORANGE, GREY = COLOURS[0], COLOURS[3], "#666666"


def plain_axes(panel: Axes) -> None:
    """No frame, and quiet lines to read values off the x axis."""
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(axis="x", color="#e0e0e0", linewidth=0.8)
    panel.set_axisbelow(True)


def line_style(number: int, points: int) -> dict[str, Any]:
    """The look of line `number` among many, with a mark at every point when these are few."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": ["-", "--", ":"][number // len(COLOURS) % 3],
        "linewidth": 1.4,
        "marker": "o" if points <= 12 else "",
        "markersize": 3,
    }
