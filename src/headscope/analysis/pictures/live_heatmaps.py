"""Heatmaps that are drawn once and recoloured often, for logging while a model trains.

Shapes: R rows, C columns of a heatmap.

matplotlib takes far longer for names and ticks than for the colours, so these are drawn once and
the colours laid over a copy of them, each panel on a scale that stays.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from torch import Tensor

from headscope.analysis.pictures.sheet import LINE, SMALL, TEXT, Sheet, array, text_width

COLUMNS, GAP = 4, 22


@dataclass(frozen=True)
class Panel:
    """A heatmap to come: what its rows and columns are called, and the ends of its scale."""

    rows: Sequence[str]
    columns: Sequence[str]
    low: float
    high: float
    cell: int = 22
    labels: tuple[str, str] = ("layer", "head")


class LiveHeatmaps:
    """Panels by name, side by side, made to be redrawn often."""

    def __init__(self, panels: Mapping[str, Panel]) -> None:
        self.panels = dict(panels)
        margin = 30 + max(text_width(row, SMALL) for p in panels.values() for row in p.rows)
        foot = 30 + max(text_width(name, SMALL) for p in panels.values() for name in p.columns)
        across = [panel.cell * len(panel.columns) for panel in panels.values()]
        down = [panel.cell * len(panel.rows) for panel in panels.values()]
        titles = [f"{name}  ({p.low:.3g} to {p.high:.3g})" for name, p in panels.items()]
        widest = max(text_width(title, TEXT) for title in titles)
        slot = margin + max(max(across), widest) + GAP
        shelf = LINE * TEXT + max(down) + foot + GAP / 2
        columns = min(COLUMNS, len(panels))
        lines = math.ceil(len(panels) / columns)
        note = "dark: the first number in brackets, or less; bright: the second, or more"
        self.sheet = Sheet(columns * slot - GAP, lines * shelf, " ", [("", note)])
        self.sheet.figure.set_dpi(72)  # a point is a pixel
        self._boxes = {}
        for number, (name, panel) in enumerate(panels.items()):
            row, column = divmod(number, columns)
            x, y = column * slot + margin, row * shelf + LINE * TEXT
            axes = self.sheet.axes(x, y, across[number], down[number])
            self.sheet.write_above(x, y, [titles[number]])
            _name_cells(axes, panel)
            self._boxes[name] = axes
        canvas = FigureCanvasAgg(self.sheet.figure)
        canvas.draw()
        self._canvas, self._frame = canvas, canvas.copy_from_bbox(self.sheet.figure.bbox)
        self._title = self.sheet.figure.text(
            *self.sheet.share(0, 12 - self.sheet.top), "", fontsize=14, parse_math=False, va="top"
        )
        self._colours = matplotlib.colormaps["viridis"](np.arange(256), bytes=True)[:, :3]

    def draw(self, values: Mapping[str, Tensor], title: str) -> np.ndarray:
        """The picture (height, width, 3), uint8, of values (R, C) for every panel. What lies beyond
        the ends of a scale has the colour of its end; NaN is white.

        Raises ValueError when a shape is another.
        """
        renderer = self._canvas.get_renderer()
        renderer.restore_region(self._frame)
        self._title.set_text(title)
        self._title.draw(renderer)
        picture = np.asarray(renderer.buffer_rgba())[..., :3].copy()
        for name, panel in self.panels.items():
            cells, shape = array(values[name]), (len(panel.rows), len(panel.columns))
            if cells.shape != shape:
                raise ValueError(f"{name} is of shape {cells.shape}, its panel of {shape}")
            share = (cells - panel.low) / (panel.high - panel.low)
            known = np.nan_to_num(share).clip(0, 1)
            colours = self._colours[(known * 255).round().astype(int)]
            colours[np.isnan(share)] = 255
            box = self._boxes[name].get_window_extent()
            top, left = round(len(picture) - box.y1), round(box.x0)
            square = colours.repeat(panel.cell, axis=0).repeat(panel.cell, axis=1)
            picture[top : top + len(square), left : left + square.shape[1]] = square
        return picture


def _name_cells(axes: Axes, panel: Panel) -> None:
    """The names of rows and columns, thinned where they would touch."""
    every = math.ceil((SMALL + 2) / panel.cell)
    axes.set_xlim(0, len(panel.columns))
    axes.set_ylim(len(panel.rows), 0)
    upright = 90 if max(map(len, panel.columns)) > 2 else 0
    places = np.arange(0, len(panel.columns), every)
    axes.set_xticks(places + 0.5, panel.columns[::every], fontsize=SMALL, rotation=upright)
    places = np.arange(0, len(panel.rows), every)
    axes.set_yticks(places + 0.5, panel.rows[::every], fontsize=SMALL)
    axes.set_ylabel(panel.labels[0], fontsize=SMALL)
    axes.set_xlabel(panel.labels[1], fontsize=SMALL)
