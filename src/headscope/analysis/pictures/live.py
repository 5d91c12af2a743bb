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
from PIL import Image, ImageDraw, ImageFont

from headscope.analysis.pictures.labels import FONT_FILE

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
        upright it reads from below."""
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
    return ImageFont.truetype(str(FONT_FILE), size).getlength(text)


def _ink(
    x: float, y: float, text: str, size: float, across: str, down: str, upright: bool
) -> tuple[Written, Image.Image]:
    font = ImageFont.truetype(str(FONT_FILE), size)
    ascent, descent = font.getmetrics()
    ink = Image.new("L", (math.ceil(font.getlength(text)) + 1, ascent + descent), 0)
    ImageDraw.Draw(ink).text((0, 0), text, fill=255, font=font)
    if upright:
        ink = ink.transpose(Image.Transpose.ROTATE_90)
    left = x - ink.width * {"left": 0, "middle": 0.5, "right": 1}[across]
    top = y - ink.height * {"top": 0, "middle": 0.5, "bottom": 1}[down]
    return Written(text, round(left), round(top), ink.width, ink.height), ink
