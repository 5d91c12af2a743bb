"""A picture that is written once and coloured often, for logging while a model trains.

matplotlib takes most of its time for axes and ticks, and a PNG for three bytes a pixel. Here Pillow
writes the text, and a pixel is one byte: a grey, or a place on the colour scale.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import matplotlib
import numpy as np
from PIL import Image, ImageDraw

from headscope.analysis.pictures.fonts import EM_ASCENT, FIRST, pillow_font, runs_of_families
from headscope.data.labels import reads_down, runs_down

GREYS, SHADES = 64, 192
"""Of the 256 colours: black to white, then the colour scale."""
WHITE = GREYS - 1


@dataclass(frozen=True)
class Written:
    """A line of text and the box it fills, in pixels from the upper left corner."""

    text: str
    left: int
    top: int
    width: int
    height: int


@dataclass(frozen=True)
class Cells:
    """What is coloured: shares (R, C) from 0 to 1, NaN for white, in squares of `cell` pixels whose
    first has its upper left corner at (left, top)."""

    shares: np.ndarray
    left: int
    top: int
    cell: int


class Canvas:
    """Text on white, to be coloured again and again."""

    def __init__(self, width: float, height: float) -> None:
        self._page = Image.new("L", (math.ceil(width), math.ceil(height)), 255)
        greys = np.linspace(0, 255, GREYS).round().astype(np.uint8)
        scale = matplotlib.colormaps["viridis"](np.linspace(0, 1, SHADES), bytes=True)[:, :3]
        self._palette = np.concatenate([greys[:, None].repeat(3, axis=1), scale]).tobytes()
        self.written: list[Written] = []

    def write(
        self,
        x: float,
        y: float,
        text: str,
        size: float,
        *,
        across: Literal["left", "middle", "right"] = "left",
        down: Literal["top", "middle", "bottom"] = "top",
        upright: bool = False,
    ) -> None:
        """A line of text whose left, middle or right is at x, its top, middle or bottom at y; when
        upright it reads from below or, with Chinese, from above (see `_vertical_ink`)."""
        place, ink = _ink(x, y, text, size, across, down, upright)
        self._page.paste(0, (place.left, place.top), ink)
        self.written.append(place)

    def coloured(self, title: str, size: float, cells: Iterable[Cells]) -> Image.Image:
        """A picture of its own, with a title at the top and these cells."""
        page = self._page.copy()
        place, ink = _ink(14, 12, title, size, "left", "top", upright=False)
        page.paste(0, (place.left, place.top), ink)
        pixels = np.asarray(page) // (256 // GREYS)
        for each in cells:
            shades = GREYS + np.nan_to_num(each.shares).clip(0, 1) * (SHADES - 1)
            colours = np.where(np.isnan(each.shares), WHITE, shades.round()).astype(np.uint8)
            square = colours.repeat(each.cell, axis=0).repeat(each.cell, axis=1)
            height, width = square.shape
            pixels[each.top : each.top + height, each.left : each.left + width] = square
        picture = Image.fromarray(pixels)
        picture.putpalette(self._palette)
        return picture


def pixels_across(text: str, size: float) -> float:
    """Pixels that a line of text takes."""
    return sum(pillow_font(family, size).getlength(run) for family, run in runs_of_families(text))


def pixels_down(text: str, size: float) -> float:
    """Pixels that a text takes beside a vertical axis."""
    if not reads_down(text):
        return pixels_across(text, size)
    descent = math.ceil((1 - EM_ASCENT) * size)
    return descent + sum(
        math.ceil(size) if stands else math.ceil(pixels_across(run, size)) + 1
        for run, stands in runs_down(text)
    )


def _ink(
    x: float, y: float, text: str, size: float, across: str, down: str, upright: bool
) -> tuple[Written, Image.Image]:
    ink = (_vertical_ink if upright else _horizontal_ink)(text, size)
    left = x - ink.width * {"left": 0, "middle": 0.5, "right": 1}[across]
    top = y - ink.height * {"top": 0, "middle": 0.5, "bottom": 1}[down]
    return Written(text, round(left), round(top), ink.width, ink.height), ink


def _horizontal_ink(text: str, size: float) -> Image.Image:
    """A line of text, every run of characters in the font that has them, on one baseline."""
    runs = [(pillow_font(family, size), run) for family, run in runs_of_families(text)]
    ascent, descent = pillow_font(FIRST, size).getmetrics()
    boxes = [font.getbbox(run, anchor="ls") for font, run in runs]
    ascent = math.ceil(max([ascent, *(-top for _, top, _, _ in boxes)]))
    descent = math.ceil(max([descent, *(bottom for _, _, _, bottom in boxes)]))
    ink = Image.new("L", (math.ceil(pixels_across(text, size)) + 1, ascent + descent), 0)
    x = 0.0
    for font, run in runs:
        ImageDraw.Draw(ink).text((x, ascent), run, fill=255, font=font, anchor="ls")
        x += font.getlength(run)
    return ink


def _vertical_ink(text: str, size: float) -> Image.Image:
    """A text turned to read from below or, with Chinese characters, a column of them upright that
    reads from above, with all others turned to the right."""
    if not reads_down(text):
        return _horizontal_ink(text, size).transpose(Image.Transpose.ROTATE_90)
    square = math.ceil(size)
    turned = {
        run: _horizontal_ink(run, size).transpose(Image.Transpose.ROTATE_270)
        for run, stands in runs_down(text)
        if not stands
    }
    width = max([square + 1, *(ink.width for ink in turned.values())])
    column = Image.new("L", (width, math.ceil(pixels_down(text, size))), 0)
    y = 0
    for run, stands in runs_down(text):
        if stands:
            [(family, _)] = runs_of_families(run)
            font = pillow_font(family, size)
            place = (width - round(font.getlength(run))) // 2, y + math.ceil(EM_ASCENT * size)
            ImageDraw.Draw(column).text(place, run, fill=255, font=font, anchor="ls")
            y += square
        else:
            column.paste(255, ((width - turned[run].width) // 2, y), turned[run])
            y += turned[run].height
    return column
