"""Rows of figures as tables and charts: one function each, for all suites."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table
from rich.text import Text

from headscope.analysis.pictures.style import BLUE, COLOURS, GREY, ORANGE, plain_axes

Row = Mapping[str, Any]
NUMBER = ",.5g"


def table(rows: Sequence[Row], keys: Sequence[str], title: str) -> Table:
    """The figures `keys` of each row: numbers, or the medians of spreads, with their range over the
    rounds and the median of their ratio."""
    columns = [("", "{side}")]
    for key in keys:
        spreads = [row[key] for row in rows if isinstance(row.get(key), Mapping)]
        whole = any(isinstance(row.get(key), int) for row in rows)
        form = f"[median]:{NUMBER}" if spreads else ":," if whole else f":{NUMBER}"
        columns.append((key.replace("_", "\n"), f"{{{key}{form}}}"))
        if any(spread["min"] < spread["max"] for spread in spreads):
            columns.append(("range", f"{{{key}[min]:,.3g}} to {{{key}[max]:,.3g}}"))
        if spreads:
            columns.append(("ratio", f"{{{key}[ratio][median]:.3f}}"))
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), title_justify="left")
    made.title = Text(title, style="bold")
    for heading, _ in columns:
        made.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for row in rows:
        made.add_row(*(Text(cell(form, row)) for _, form in columns))
    return made


def cell(form: str, row: Row) -> str:
    """The figures of a row as `form` says; "-" where the row lacks one."""
    try:
        text = form.format_map(row)
        return "-" if text == "nan" else text
    except (KeyError, TypeError):
        return "-"


def middle(row: Row, key: str) -> float:
    """A figure of a row, or the median of it; NaN where the row lacks it."""
    value = row.get(key, math.nan)
    return value["median"] if isinstance(value, Mapping) else value


@dataclass(frozen=True)
class Bars:
    """A horizontal bar for each row, with `words` at its end.

    `parts` names the figures that are drawn, by their key: stacked, or with `nested` the second one
    inside the first. Rows of the sides `highlight` have another colour.
    """

    title: str
    axis: str
    rows: Sequence[Row]
    parts: Mapping[str, str]
    words: str
    highlight: Sequence[str] = ()
    nested: bool = False

    def draw(self, axes: Axes) -> None:
        names = [row["side"] for row in self.rows]
        ends = [0.0] * len(names)
        for (key, label), colour in zip(self.parts.items(), (BLUE, *COLOURS[4:0:-1]), strict=False):
            widths = [middle(row, key) for row in self.rows]
            if self.nested and key != next(iter(self.parts)):
                axes.barh(names, widths, color="black", height=0.2, label=label)
                continue
            colours = [ORANGE if name in self.highlight else colour for name in names]
            axes.barh(names, widths, left=ends, color=colours, height=0.7, label=label)
            ends = [end + width for end, width in zip(ends, widths, strict=True)]
        axes.set_xlim(0, 1.02 * max(ends))
        if self.nested:  # from milliseconds to seconds
            shortest = min(middle(row, key) for row in self.rows for key in self.parts)
            axes.set(xscale="log", xlim=(shortest / 1.5, 1.02 * max(ends)))
            axes.xaxis.set_minor_formatter("")
        axes.xaxis.set_major_formatter("{x:,g}")
        axes.set_xlabel(self.axis)
        axes.invert_yaxis()
        for place, (row, end) in enumerate(zip(self.rows, ends, strict=True)):
            # Where it leaves the panel, the layout makes room for it.
            words = axes.annotate(cell(self.words, row), (end, place), (5, 0), va="center")
            words.set(anncoords="offset points", annotation_clip=False)


@dataclass(frozen=True)
class Line:
    """A figure of rows against another one; without a marker it is a dotted reference line."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    colour: str = GREY
    marker: str = ""
    ranges: Sequence[Row] = ()


@dataclass(frozen=True)
class Lines:
    """A panel of lines, with `base` on logarithmic axes. `ranges` of a line are drawn from min to
    max."""

    title: str
    axis: str
    lines: Sequence[Line]
    base: int | None = None

    def draw(self, axes: Axes) -> None:
        for line in self.lines:
            style = "-" if line.marker else ":"
            shape = {"color": line.colour, "linestyle": style, "marker": line.marker}
            size = 9 if line.marker == "s" else 5  # where two are in one place, both show
            axes.plot(line.x, line.y, label=line.label, ms=size, **shape)  # type: ignore[arg-type]
            for x, row in zip(line.x, line.ranges, strict=False):
                axes.vlines(x, row["min"], row["max"], color=line.colour)
        axes.set_xlabel(self.axis)
        axes.grid(axis="y", color="#e0e0e0", linewidth=0.8)
        for set_scale in (axes.set_xscale, axes.set_yscale) if self.base else ():
            set_scale("log", base=self.base)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter("{x:,.10g}")
            axis.set_minor_formatter("")


Panel = Bars | Lines


def chart(title: str, panels: Sequence[Panel], columns: int = 1) -> Figure:
    """The panels in rows of `columns` under one title, with one legend for all of them."""
    rows = math.ceil(len(panels) / columns)
    height = max(1 + 0.28 * len(panel.rows) if isinstance(panel, Bars) else 3.6 for panel in panels)
    size = (5 + 4 * max(columns, 1.2), 1.6 + height * rows)
    figure = Figure(figsize=size, layout="constrained")
    figure.suptitle(title, fontsize=12)
    grid = figure.subplots(rows, columns, squeeze=False).flat
    labels: dict[str, Any] = {}
    for panel, axes in zip(panels, grid, strict=False):
        axes.set_title(panel.title, loc="left", fontsize=11)
        plain_axes(axes)
        panel.draw(axes)
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            labels.setdefault(label, handle)
    for axes in grid:  # those without a panel
        axes.set_visible(False)
    if len(labels) > 1:
        figure.legend(labels.values(), labels, loc="outside lower center", ncols=3, frameon=False)
    return figure
