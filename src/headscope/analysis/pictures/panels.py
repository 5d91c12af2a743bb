"""Panels of one size in rows: images and curves over positions or distances."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.ticker import MaxNLocator

from headscope.analysis.pictures.sheet import (
    DIVERGING,
    LINE,
    SMALL,
    TEXT,
    Sheet,
    limits,
    numbers,
    ticked,
    wrapped,
    write_numbers,
)
from headscope.analysis.pictures.style import BLUE, COLOURS

WIDTH, HEIGHT = 300, 230  # points of a panel
LEFT, BELOW, BETWEEN = 52, 42, 96


class Panels:
    """Panels in rows of `columns`, each below a caption that says what it shows."""

    def __init__(self, panels: int, title: str, columns: int = 3) -> None:
        self._columns, self._drawn = min(columns, panels), 0
        rows = math.ceil(panels / self._columns)
        self._caption = 2 * LINE * TEXT + 4
        self._down = self._caption + HEIGHT + BELOW
        width = LEFT + self._columns * (WIDTH + BETWEEN) - BETWEEN + 60
        self._sheet = Sheet(width, rows * self._down, title)
        self.figure = self._sheet.figure

    def place(self, caption: str) -> tuple[float, float]:
        """Where the next panel stands, its caption written above."""
        row, column = divmod(self._drawn, self._columns)
        self._drawn += 1
        x = LEFT + column * (WIDTH + BETWEEN)
        y = row * self._down + self._caption
        self._sheet.write_above(x, y - 2, wrapped(caption, WIDTH + 40, TEXT))
        return x, y

    def panel(
        self,
        x: float,
        y: float,
        across: str,
        down: str,
        height: float = HEIGHT,
        whole: str = "x",
    ) -> Axes:
        """A panel with its axes named."""
        panel = self._sheet.axes(x, y, WIDTH, height)
        ticked(panel, whole)
        panel.set_xlabel(across, fontsize=SMALL)
        panel.set_ylabel(down, fontsize=SMALL)
        return panel

    def image(
        self,
        caption: str,
        values: np.ndarray,
        across: str,
        down: str,
        *,
        ends: tuple[float, float] | None = None,
        written: bool = False,
    ) -> None:
        """A panel with values (down, across); ends below and above zero get diverging colours. With
        `written` every cell has its number."""
        x, y = self.place(caption)
        panel = self.panel(x, y, across, down, whole="xy")
        low, high = ends or limits(values, diverging=bool((values < 0).any()))
        image = panel.imshow(
            values,
            norm=Normalize(low, high),
            cmap=DIVERGING if low < 0 else "viridis",
            aspect="auto",
            interpolation="nearest",
            interpolation_stage="rgba",
        )
        panel.grid(visible=False)
        panel.spines[:].set_visible(False)
        if written:
            write_numbers(panel, image, numbers(values), WIDTH / values.shape[1])
        self._sheet.bar(image, x + WIDTH + 8, y, HEIGHT)

    def curves(
        self, caption: str, values: np.ndarray, names: Sequence[str], across: str, down: str
    ) -> None:
        """A panel with a line for each row of values (lines, places)."""
        panel = self.panel(*self.place(caption), across, down)
        for number, (line, name) in enumerate(zip(values, names, strict=True)):
            panel.plot(
                line,
                color=COLOURS[number % len(COLOURS)],
                linestyle=["-", "--", ":"][number // len(COLOURS) % 3],
                label=name,
                **marked(line),
            )
        panel.set_xlim(-0.5, values.shape[1] - 0.5)  # as an image of them has
        if len(values) > 1:
            panel.legend(
                loc="upper left",
                bbox_to_anchor=(1, 1),
                borderaxespad=0.2,
                frameon=False,
                fontsize=min(SMALL - 0.5, HEIGHT / len(values) / 1.6),
                handlelength=1.3,
                handletextpad=0.5,
            )

    def strips(
        self, caption: str, values: np.ndarray, names: Sequence[str], across: str, *, steps: bool
    ) -> None:
        """Each row of values (lines, places) in a strip of its own, all on one scale."""
        x, y = self.place(caption)
        pitch = (HEIGHT + 10) / len(values)
        low, high = limits(values)
        pad = 0.08 * (high - low)
        for number, (line, name) in enumerate(zip(values, names, strict=True)):
            last = number == len(values) - 1
            strip = self.panel(x, y + number * pitch, across if last else "", name, pitch - 10)
            strip.plot(
                line, color=BLUE, drawstyle="steps-mid" if steps else "default", **marked(line)
            )
            strip.set_xlim(-0.5, len(line) - 0.5)
            strip.set_ylim(low - pad, high + pad)
            strip.yaxis.set_major_locator(MaxNLocator(2, steps=[1, 2, 5, 10]))
            strip.tick_params(labelbottom=last)


def marked(line: np.ndarray) -> dict[str, Any]:
    """A line's width, and a mark at every place when these are few."""
    return {"linewidth": 1.4, "marker": "o" if len(line) <= 12 else "", "markersize": 3}
