"""What the pictures share: text that is measured before it is drawn, and parts that stand at places
given in points, so that nothing overlaps and nothing is cut off."""

import math
from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import get_hinting_flag
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.font_manager import get_font
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator, StrMethodFormatter
from torch import Tensor

from headscope.analysis.pictures.fonts import files_for, font_properties
from headscope.analysis.pictures.labels import readable
from headscope.analysis.pictures.style import plain_axes

DPI = 144  # two pixels to a point
EDGE, WIDE = 14, 420
TITLE, TEXT, SMALL = 14, 10, 8.5
LINE = 1.45  # from one line of text to the next, in its size
DIVERGING = "RdBu_r"
BAR, BAR_ROOM = 12, 68
"""Points: a colour bar's width, and what it takes with its gap and numbers."""


def array(tensor: Tensor) -> np.ndarray:
    """Numbers to draw, of a tensor of any type, on any device."""
    return tensor.detach().float().cpu().numpy()


def text_width(text: str, size: float) -> float:
    """Points that one line of text takes."""
    font = get_font(files_for(text))
    font.set_size(size, DPI)  # as it will be drawn: hinting rounds every letter to pixels
    font.set_text(text, flags=get_hinting_flag())
    return font.get_width_height()[0] / 64 * 72 / DPI


def wrapped(text: str, width: float, size: float) -> list[str]:
    """`text` in lines at most `width` points wide, broken between words where there are any."""
    lines = []
    for paragraph in readable(text).split("\n"):
        rest = paragraph.strip()
        while text_width(rest, size) > width and len(rest) > 1:
            line = rest
            most = bisect_right(range(len(line)), width, key=lambda n: text_width(line[:n], size))
            fits = max(1, most - 1)
            blank = rest.rfind(" ", 1, fits + 1)
            cut = blank if blank > 0 else fits
            lines.append(rest[:cut].rstrip())
            rest = rest[cut:].lstrip()
        lines.append(rest)
    return lines


def numbers(values: np.ndarray) -> np.ndarray:
    """Values of any shape as texts alike in decimals, so many that the largest has three digits
    or nearly. What is not finite, as where a figure has no meaning, is a dash."""
    largest = float(np.abs(values[np.isfinite(values)]).max(initial=0))
    exponent = math.floor(math.log10(2 * largest)) if largest else 0
    form = f".{max(0, 2 - max(0, exponent - 1) - min(0, exponent))}f"
    if not -3 <= exponent < 5:
        form = ".1e"
    texts = [f"{value:z{form}}" if np.isfinite(value) else "-" for value in values.flat]
    return np.array(texts, dtype=object).reshape(values.shape)


def limits(values: np.ndarray, *, diverging: bool = False) -> tuple[float, float]:
    """Both ends of a colour scale: least and greatest, or symmetric about zero. Never equal."""
    finite = values[np.isfinite(values)]
    if diverging:
        limit = float(np.abs(finite).max(initial=0)) or 1.0
        return -limit, limit
    if not finite.size:
        return 0.0, 1.0
    low, high = float(finite.min()), float(finite.max())
    pad = 0.0 if low < high else 0.1 * abs(low) or 0.1
    return low - pad, high + pad


def write_numbers(
    panel: Axes, image: AxesImage, texts: np.ndarray, room: float, size: float = SMALL
) -> None:
    """A text for each cell of `image`, dark on light colours and light on dark, smaller than `size`
    where a cell of `room` points across needs it."""
    values: np.ma.MaskedArray = np.ma.masked_invalid(np.ma.asarray(image.get_array()))
    colours = image.to_rgba(values)
    sent = np.where(colours <= 0.04045, colours / 12.92, ((colours + 0.055) / 1.055) ** 2.4)
    luminance = sent[..., :3] @ np.array([0.2126, 0.7152, 0.0722])
    light = (luminance > 0.18) | (colours[..., 3] == 0)  # at 0.18 both inks have equal contrast
    widest = max(text_width(text, size) for text in texts.flat)
    font = font_properties(min(size, 0.88 * size * room / widest) if widest else size)
    for (row, column), text in np.ndenumerate(texts):
        if text:
            panel.text(
                *(column, row, text),
                color="black" if light[row, column] else "white",
                ha="center",
                va="center_baseline",
                fontproperties=font,
            )


def ticked(panel: Axes, whole: str = "") -> None:
    """Axes with numbers, drawn quietly; those named in `whole` have whole numbers alone."""
    plain_axes(panel)
    panel.spines[["left", "bottom"]].set_visible(True)
    for name, axis in {"x": panel.xaxis, "y": panel.yaxis}.items():
        axis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=name in whole))
        axis.set_major_formatter(StrMethodFormatter("{x:.4g}"))  # not one that adds x10 above
    panel.tick_params(length=3, labelsize=SMALL)


class Sheet:
    """A figure whose parts stand at places given in points, right of its left edge and below its
    title and notes.

    `width` and `height` are of what stands there. A figure narrower than its title is made wider,
    up to WIDE; a title beyond that is broken. A note is a line of its own below the title, behind a
    square of its colour unless that is empty.
    """

    def __init__(
        self, width: float, height: float, title: str, notes: Sequence[tuple[str, str]] = ()
    ) -> None:
        need = max(text_width(line, TITLE) for line in readable(title).split("\n"))
        self.width = max(width + 2 * EDGE, min(WIDE, need + 2 * EDGE + 2))
        inner = self.width - 2 * EDGE
        lines = [(0, TITLE, "", line) for line in wrapped(title, inner, TITLE)]
        for colour, text in notes:
            indent = 14 if colour else 0
            for number, line in enumerate(wrapped(text, inner - indent, TEXT)):
                lines.append((indent, TEXT, "" if number else colour, line))
        self.top = EDGE + sum(LINE * size for _, size, _, _ in lines) + 8
        self.height = self.top + height + EDGE
        self.figure = Figure(figsize=(self.width / 72, self.height / 72), dpi=DPI, facecolor="w")
        y: float = EDGE - self.top
        for indent, size, colour, line in lines:
            y += LINE * size
            self.write(indent, y, line, size)
            if colour:
                self.write(0, y, "■", size, color=colour)

    def write(self, x: float, y: float, text: str, size: float, color: str = "black") -> None:
        """One line of text that begins at x, its line's lower edge at y."""
        self.figure.text(
            *self.share(x, y - 0.4 * size),
            text,
            color=color,
            fontproperties=font_properties(size, [text]),
            parse_math=False,
        )

    def write_above(self, x: float, y: float, lines: Sequence[str]) -> None:
        """Lines of text that end just above y, as the name of a panel that begins there."""
        for number, line in enumerate(reversed(lines)):
            self.write(x, y - 2 - number * LINE * TEXT, line, TEXT)

    def share(self, x: float, y: float) -> tuple[float, float]:
        """A place as matplotlib counts them: shares of the figure, from its lower left corner."""
        return (x + EDGE) / self.width, 1 - (self.top + y) / self.height

    def axes(self, x: float, y: float, width: float, height: float) -> Axes:
        """A panel without ticks, its upper left corner x right of and y below the sheet's own."""
        size = (width / self.width, height / self.height)
        panel = self.figure.add_axes((*self.share(x, y + height), *size), facecolor="none")
        panel.set(xticks=[], yticks=[])
        panel.tick_params(length=0, pad=4)
        panel.spines[:].set_visible(False)
        return panel

    def bar(
        self,
        image: ScalarMappable,
        x: float,
        y: float,
        height: float,
        label: str = "",
        ticks: Sequence[float] | None = None,
    ) -> Axes:
        """The colour scale of `image`, with a label that is broken to its height."""
        bar = self.axes(x, y, BAR, height)
        self.figure.colorbar(image, cax=bar).outline.set_visible(False)
        low, high = image.get_clim()
        if ticks is None:
            places = MaxNLocator(max(2, min(6, int(height // 24))), steps=[1, 2, 5, 10])
            ticks = [t for t in places.tick_values(low, high) if low <= t <= high]
        bar.set_yticks(ticks, [f"{tick:.4g}" for tick in ticks], fontsize=SMALL)
        bar.minorticks_off()
        bar.tick_params(length=2, pad=2)
        text = "\n".join(wrapped(label, height, SMALL + 0.5))
        bar.set_ylabel(text, fontproperties=font_properties(SMALL + 0.5, [text]), parse_math=False)
        return bar
