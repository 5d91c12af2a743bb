"""Colours, lines and axes that all pictures and charts share."""

from typing import Any

from matplotlib.axes import Axes

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7", "#000000")
"""The palette of Okabe and Ito for colour-blind readers, without the yellow colour."""
BLUE, ORANGE, GREY = COLOURS[0], COLOURS[3], "#666666"


def plain_axes(panel: Axes) -> None:
    """Remove the top and right sides of the frame, and add light vertical grid lines."""
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(axis="x", color="#e0e0e0", linewidth=0.8)
    panel.set_axisbelow(True)


def line_style(number: int, points: int) -> dict[str, Any]:
    """Keyword arguments of `plot` for line `number`. Lines with up to 12 points get markers."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": ["-", "--", ":"][number // len(COLOURS) % 3],
        "linewidth": 1.4,
        "marker": "o" if points <= 12 else "",
        "markersize": 3,
    }
