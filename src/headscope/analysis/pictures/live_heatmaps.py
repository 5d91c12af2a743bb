"""Heatmaps for logging while a model trains, each on a scale that stays.

Shapes: R rows, C columns of a heatmap.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from PIL import Image
from torch import Tensor

from headscope.analysis.pictures.live import Canvas, Cells, pixels_across
from headscope.analysis.pictures.sheet import array
from headscope.errors import UserError

TITLE, TEXT, SMALL = 16, 12, 10  # pixels
EDGE, TOP, GAP, COLUMNS = 14, 62, 24, 4
NOTE = "dark: the first number in brackets, or less; bright: the second, or more"


@dataclass(frozen=True)
class Panel:
    """A heatmap to come: what its rows and columns are called, and the ends of its scale."""

    rows: Sequence[str]
    columns: Sequence[str]
    low: float
    high: float
    cell: int = 24
    labels: tuple[str, str] = ("layer", "head")


class LiveHeatmaps:
    """Panels by name, side by side, made to be redrawn often."""

    def __init__(self, panels: Mapping[str, Panel]) -> None:
        self.panels = dict(panels)
        left = 22 + max(pixels_across(row, SMALL) for p in panels.values() for row in p.rows)
        foot = 22 + max(pixels_across(name, SMALL) for p in panels.values() for name in p.columns)
        titles = [f"{name}  ({p.low:.3g} to {p.high:.3g})" for name, p in panels.items()]
        across = [panel.cell * len(panel.columns) for panel in panels.values()]
        down = [panel.cell * len(panel.rows) for panel in panels.values()]
        slot = left + max(*across, *(pixels_across(title, TEXT) for title in titles)) + GAP
        shelf = 20 + max(down) + foot + GAP
        columns = min(COLUMNS, len(panels))
        lines = math.ceil(len(panels) / columns)
        width = max(columns * slot, pixels_across(NOTE, TEXT) + EDGE)
        self.canvas = Canvas(EDGE + width, TOP + lines * shelf)
        self.canvas.write(EDGE, 36, NOTE, TEXT)
        self.corners = {}
        for number, (name, panel) in enumerate(panels.items()):
            row, column = divmod(number, columns)
            x, y = round(EDGE + column * slot + left), round(TOP + row * shelf + 20)
            self.canvas.write(x, y - 4, titles[number], TEXT, down="bottom")
            self._name_cells(panel, x, y, left, foot)
            self.corners[name] = x, y

    def _name_cells(self, panel: Panel, x: int, y: int, left: float, foot: float) -> None:
        """The names of rows and columns, thinned where they would touch."""
        write = self.canvas.write
        every = math.ceil((SMALL + 3) / panel.cell)
        for number, name in list(enumerate(panel.rows))[::every]:
            middle = y + (number + 0.5) * panel.cell
            write(x - 4, middle, name, SMALL, across="right", down="middle")
        bottom = y + panel.cell * len(panel.rows)
        upright = max(map(len, panel.columns)) > 2
        for number, name in list(enumerate(panel.columns))[::every]:
            middle = x + (number + 0.5) * panel.cell
            write(middle, bottom + 4, name, SMALL, across="middle", upright=upright)
        middle = y + panel.cell * len(panel.rows) / 2
        write(x - left + 2, middle, panel.labels[0], SMALL, down="middle", upright=True)
        middle = x + panel.cell * len(panel.columns) / 2
        write(middle, bottom + foot, panel.labels[1], SMALL, across="middle", down="bottom")

    def draw(self, values: Mapping[str, Tensor], title: str) -> Image.Image:
        """The picture of values (R, C) for every panel. What lies beyond the ends of a scale has
        the colour of its end; NaN is white.

        Raises UserError when a shape is another.
        """
        cells = []
        for name, panel in self.panels.items():
            given, shape = array(values[name]), (len(panel.rows), len(panel.columns))
            if given.shape != shape:
                raise UserError(f"{name} is of shape {given.shape}, its panel of {shape}")
            shares = (given - panel.low) / (panel.high - panel.low)
            cells.append(Cells(shares, *self.corners[name], panel.cell))
        return self.canvas.coloured(title, TITLE, cells)
