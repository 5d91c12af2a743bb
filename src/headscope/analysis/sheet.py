"""What all pictures share: colours, fonts, a grid of panels, heatmaps and wrapped text.

matplotlib's constrained layout makes room for all labels. Sizes are in points.
"""

import math
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, findSystemFonts, fontManager, get_font
from matplotlib.image import AxesImage
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.textpath import text_to_path
from matplotlib.transforms import Affine2D, ScaledTranslation, blended_transform_factory
from torch import Tensor

from headscope.data.labels import EMPTY, code_point, split_characters, visible_characters

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7", "#000000")
"""The palette of Okabe and Ito for colour-blind readers, without the yellow colour."""
BLUE, ORANGE, GREY = COLOURS[0], COLOURS[3], "#666666"
Which = Literal["x", "both"]
DPI = 144
TITLE, TEXT, SMALL = 14, 10, 8.5
EDGE, NARROWEST = 8, 300
LABEL_LENGTH = 10
MOST_MARKS = 8  # combining marks on one character; more would cover the line above
FIRST = "DejaVu Sans"
FALLBACKS = (
    # Fonts for Chinese and for Japanese kana; most also contain Korean hangul. In Noto Sans CJK,
    # matplotlib before 3.11 reads only the Japanese font.
    *("Noto Sans CJK SC", "Noto Sans SC", "Source Han Sans SC", "Noto Sans CJK JP"),
    *("WenQuanYi Zen Hei", "WenQuanYi Micro Hei", "Droid Sans Fallback"),
    *("PingFang SC", "Hiragino Sans GB", "Heiti SC", "Heiti TC", "STHeiti"),
    *("Microsoft YaHei", "SimHei", "SimSun", "Microsoft JhengHei"),
    *("Hiragino Sans", "Yu Gothic", "MS Gothic", "Noto Sans JP"),
    *("Apple SD Gothic Neo", "Malgun Gothic", "NanumGothic", "Noto Sans KR"),
    # Fonts for other scripts that DejaVu Sans lacks.
    *("Noto Sans Devanagari", "Lohit Devanagari", "Kohinoor Devanagari", "Nirmala UI"),
    *("Noto Sans Thai", "Loma", "Thonburi", "Leelawadee UI", "Tahoma"),
    *("FreeSans", "Arial Unicode MS"),
    # Emoji fonts with outlines, because matplotlib cannot scale bitmap fonts.
    *("Noto Emoji", "Symbola", "Segoe UI Emoji"),
)
"""Font families for the characters that DejaVu Sans lacks, in order of preference."""
PLAIN: Any = dict.fromkeys(["style", "variant", "weight", "stretch"], "normal")
"""Properties of every font. They override the defaults in a matplotlibrc file."""


class Sheet:
    """A figure with a grid of `count` panels. `width` and `height` are the size of each panel. Draw
    into `panels`, then call `finish`."""

    def __init__(self, count: int, columns: int, width: float, height: float, title: str) -> None:
        self.panel_size, self.title = np.array([width, height]), title
        self.shape = np.array([min(columns, count), math.ceil(count / columns)])
        size = self.shape * self.panel_size + 1000  # enough for all labels; `finish` sets the size
        self.layout = ConstrainedLayoutEngine(w_pad=EDGE / 72, h_pad=EDGE / 72, wspace=0, hspace=0)
        self.figure = Figure(size / 72, dpi=DPI, facecolor="w", layout=self.layout)
        every = self.figure.subplots(*self.shape[::-1], squeeze=False).flat
        self.panels = list(every[:count])
        for panel in every[count:]:
            panel.remove()
        for panel in self.panels:
            panel.tick_params(length=0, labelsize=SMALL)
            panel.xaxis.label.set_size(SMALL)
            panel.yaxis.label.set_size(SMALL)

    def name(self, panel: Axes, text: str) -> None:
        """Write `text` above a panel. Lines that are wider than the panel are wrapped."""
        text = wrapped(text, self.panel_size[0], TEXT)
        # Without a fixed y, matplotlib would look for a free place, which takes time.
        panel.set_title(text, loc="left", y=1, **font_for(TEXT, text))

    def bar(self, image: AxesImage, label: str = "", ticks: Sequence[float] | None = None) -> Axes:
        """Draw the colour bar of `image` to the right of its panel."""
        edge: Any = image.axes.transAxes  # affine, although its type does not say so
        share = min(1.0, 360 / self.panel_size[1])
        points = Affine2D().scale(1 / 72) + self.figure.dpi_scale_trans
        place = blended_transform_factory(points + ScaledTranslation(1, 0, edge), edge)
        bar = image.axes.inset_axes((14, 1 - share, 11, share), transform=place)
        scale = self.figure.colorbar(image, cax=bar, ticks=ticks, format="%.4g")
        scale.outline.set_visible(False)
        bar.minorticks_off()
        bar.tick_params(length=2, pad=2, labelsize=SMALL)
        bar.set_ylabel(label, fontsize=SMALL)
        return bar

    def legend(self, lines: Sequence[Line2D], title: str = "") -> None:
        legend = self.figure.legend(handles=lines, loc="outside lower left", title=title, ncols=4)
        legend.set_frame_on(False)

    def heatmap(
        self, panel: Axes, name: str, values: np.ndarray, norm: Normalize, colours: str = ""
    ) -> AxesImage:
        """Draw values (rows, columns) as a heatmap with a name above it. NaN is blank. By default,
        the colours are diverging if the limits of `norm` are symmetric around zero."""
        colours = colours or ("RdBu_r" if norm.vmin == -(norm.vmax or 0) else "viridis")
        image = panel.imshow(values, colours, norm, aspect="auto", interpolation="nearest")
        image.set_interpolation_stage("rgba")  # compute colours per cell, not per pixel
        panel.spines[:].set_visible(False)
        panel.grid(visible=False)
        self.name(panel, name)
        return image

    def write(self, image: AxesImage, texts: np.ndarray, cell: float = math.inf) -> None:
        """Write a text into each cell: black on light colours, white on dark colours. No text is
        wider than `cell` points."""
        colours = image.to_rgba(np.ma.asarray(image.get_array()))
        linear = np.where(colours <= 0.04045, colours / 12.92, ((colours + 0.055) / 1.055) ** 2.4)
        luminance = linear[..., :3] @ np.array([0.2126, 0.7152, 0.0722])
        light = (luminance > 0.18) | (colours[..., 3] == 0)  # equal contrast at 0.18
        font = font_properties(min(SMALL, cell / (0.72 * max(map(len, texts.flat)))))
        for row, column in zip(*np.nonzero(texts), strict=True):
            ink = "black" if light[row, column] else "white"
            text = image.axes.text(column, row, texts[row, column], color=ink, fontproperties=font)
            text.set(ha="center", va="center_baseline", in_layout=False)

    def ticked(self, panel: Axes, across: str, down: str, axis: Which = "x") -> None:
        """Label both axes, and set their ticks: on `axis` only at integers."""
        plain_axes(panel)
        panel.locator_params(axis, integer=True)
        for scale in (panel.xaxis, panel.yaxis):
            scale.set_major_formatter("{x:.4g}")  # no common factor, such as 1e3, at the axis
        panel.tick_params(length=3)
        panel.set(xlabel=across, ylabel=down)

    def finish(self) -> Figure:
        """Adjust the size of the figure to its panels, labels and title, then freeze the layout."""
        heading = self.figure.suptitle(" ", ha="left", **font_for(TITLE, readable(self.title)))
        self.layout.execute(self.figure)
        size, line = self.figure.get_size_inches() * 72, heading.get_window_extent().height
        size += self.shape * (self.panel_size - self.panels[0].get_position().size * size)
        size[0] = max(size[0], NARROWEST)
        heading.set_text(wrapped(self.title, size[0] - 2 * EDGE, TITLE))
        heading.set_x(EDGE / size[0])
        size[1] += (heading.get_window_extent().height - line) * 72 / DPI
        self.figure.set_size_inches(*size / 72)
        self.layout.execute(self.figure)  # a second time, for the final size
        self.figure.set_layout_engine("none")
        return self.figure


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


def array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().float().cpu().numpy()


def font_for(size: float, *texts: str) -> dict[str, Any]:
    return {"fontproperties": font_properties(size, texts), "parse_math": False}


def wrapped(text: str, width: float, size: float) -> str:
    """Break `text`, and very long words in it, into lines of up to `width` points."""
    lines = readable(text).split("\n")
    return "\n".join(joined(re.findall(r"\S{0,10} *", line), width, size) for line in lines)


def joined(pieces: Sequence[str], width: float, size: float) -> str:
    """Join pieces of text to lines of up to `width` points, but at least one piece per line."""
    lines, font = [""], font_properties(size, pieces)
    for piece in pieces:
        line = lines[-1] + piece.rstrip()
        needed, _, _ = text_to_path.get_text_width_height_descent(line, font, ismath=False)
        # Drawn letters are up to 5 percent wider: their widths are rounded to whole pixels.
        if lines[-1] and needed > 0.95 * width:
            lines.append("")
        lines[-1] += piece
    return "\n".join(line.rstrip() for line in lines)


def numbers(values: np.ndarray, form: str = "") -> np.ndarray:
    """Format values as texts, in an array of the same shape. NaN and infinity become a dash. By
    default, all texts have equally many decimals, and the largest value has about three digits."""
    largest = float(np.abs(values[np.isfinite(values)]).max(initial=0)) or 1.0
    power = math.floor(math.log10(2 * largest))
    decimals = max(0, 2 - max(0, power - 1) - min(0, power))
    form = form or (f"z.{decimals}f" if -3 <= power < 5 else "z.1e")
    texts = [f"{value:{form}}" if np.isfinite(value) else "-" for value in values.flat]
    return np.array(texts, dtype=object).reshape(values.shape)


def limits(values: np.ndarray, *, diverging: bool = False) -> tuple[float, float]:
    """The minimum and maximum of the finite values or, if `diverging`, limits that are symmetric
    around zero. The two limits are never equal."""
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    if diverging:
        low, high = min(low, -high), max(-low, high)
    pad = 0.0 if low < high else 0.1 * abs(low) or 0.1
    return low - pad, high + pad


@cache
def family_for(character: str) -> str | None:
    """The first font family that can draw a character with its combining marks, or None."""
    if character.isascii() or _has_ink(_file_of(FIRST), character):
        return FIRST
    return next((name for name, file in fallbacks().items() if _has_ink(file, character)), None)


def font_properties(size: float, texts: Iterable[str] = ()) -> FontProperties:
    """DejaVu Sans and the font families that `texts` need, in a size in points."""
    needed = set(map(family_for, split_characters("\n".join(texts))))
    families = [FIRST, *(family for family in FALLBACKS if family in needed)]
    return FontProperties(family=families, size=size, **PLAIN)


@cache
def fallbacks() -> dict[str, str]:
    """The installed font families of FALLBACKS, each with its font file."""
    # matplotlib caches its list of fonts on disk, so add the fonts that were installed later.
    listed = {entry.fname for entry in fontManager.ttflist}
    for file in set(findSystemFonts()) - listed:
        with suppress(OSError, RuntimeError):  # skip files that FreeType cannot read
            fontManager.addfont(file)
    files = {}
    for family in FALLBACKS:
        entries = [entry for entry in fontManager.ttflist if entry.name == family]
        if entries:
            regular = min(entries, key=lambda entry: fontManager.score_weight(entry.weight, 400))
            # Without this entry, matplotlib warns when a family has no font of weight 400.
            fontManager.ttflist.append(replace(regular, weight=400))
            files[family] = _file_of(family)
    return files


def _file_of(family: str) -> str:
    return findfont(FontProperties(family=[family], **PLAIN))


def _has_ink(file: str, character: str) -> bool:
    font = get_font(file)
    codes = map(ord, character)
    return all(font.get_char_index(code) and font.load_char(code).height > 0 for code in codes)


def picture_label(text: str) -> str:
    """A label of a token, of at most LABEL_LENGTH + 1 characters. A character that is invisible or
    has no font is replaced by its code point, such as U+4E2D."""
    shown = split_characters("".join(map(_drawable, visible_characters(text))))
    if len(shown) > LABEL_LENGTH + 1:
        shown[LABEL_LENGTH:] = "…"
    return "".join(shown) or EMPTY


def readable(text: str) -> str:
    """Replace the characters of a title or name that no font can draw. Keep spaces and newlines."""
    return "".join(
        word if word in ("", " ", "\n") else "".join(map(_drawable, visible_characters(word)))
        for word in re.split("([ \n])", text)
    )


def _drawable(character: str) -> str:
    """Replace a character, or only its combining marks, by code points if no font can draw it."""
    base, marks = character[0], character[1:]
    if family_for(character) and len(marks) <= MOST_MARKS:
        return character
    return (base if family_for(base) else code_point(base)) + "".join(map(code_point, marks))
