"""Shows the results of a benchmark suite as Markdown tables and as a chart."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headscope.analysis.pictures.style import BLUE, GREY, ORANGE, plain_axes

Row = Mapping[str, Any]
NUMBER = ",.5g"


def table(rows: Sequence[Row], columns: Mapping[str, str]) -> str:
    """A Markdown table with one line for each row. `columns` maps keys of the rows to headings.

    A value is a number, a text, or a dictionary of statistics over the rounds of a benchmark. From
    a dictionary, the table shows the median, the range and the median ratio to the reference.
    """
    forms = {"": "{side}"}
    for key, heading in columns.items():
        values = [row[key] for row in rows if key in row]
        spreads = [value for value in values if isinstance(value, Mapping)]
        form = f"[median]:{NUMBER}" if spreads else f":{NUMBER}"
        if any(isinstance(value, int | str) for value in values):
            form = "" if isinstance(values[0], str) else ":,"
        forms[heading] = f"{{{key}{form}}}"
        if any(spread["min"] < spread["max"] for spread in spreads):
            forms[f"{heading}: range"] = f"{{{key}[min]:{NUMBER}}} to {{{key}[max]:{NUMBER}}}"
        if spreads:
            forms[f"{heading}: ratio"] = f"{{{key}[ratio][median]:.3f}}"
    cells = [[*forms], *([cell(form, row) for form in forms.values()] for row in rows)]
    widths = [max(3, *map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        [text.rjust(width) for text, width in zip(line, widths, strict=True)] for line in cells
    ]
    for line in lines:
        line[0] = line[0].strip().ljust(widths[0])
    lines.insert(1, ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cell(form: str, row: Row) -> str:
    """The format string `form`, filled with values of a row, or "-" if the row lacks a value."""
    try:
        text = form.format_map(row)
    except (KeyError, TypeError):
        return "-"
    return "-" if text == "nan" else text


@dataclass(frozen=True)
class Bars:
    """A panel of a chart, with one horizontal bar for each row. The length of a bar is the median
    of `key`. The text at its end is the median and the median ratio to the reference."""

    title: str
    axis: str
    rows: Sequence[Row]
    key: str

    def draw(self, axes: Axes) -> None:
        names = [row["side"] for row in self.rows]
        widths = [row[self.key]["median"] for row in self.rows]
        colours = [ORANGE if name.startswith("headscope") else BLUE for name in names]
        bars = axes.barh(names, widths, color=colours, height=0.7)
        words = f"{{{self.key}[median]:{NUMBER}}}, {{{self.key}[ratio][median]:.2f}}x"
        # The text may extend beyond the axes: the constrained layout makes room for it.
        axes.bar_label(bars, [cell(words, row) for row in self.rows], padding=5)
        axes.xaxis.set_major_formatter("{x:,g}")
        axes.set_xlabel(self.axis)
        axes.invert_yaxis()


@dataclass(frozen=True)
class Line:
    """A line in a panel, with the points (x, y). A grey line is a reference: it is dotted."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    colour: str = GREY


@dataclass(frozen=True)
class Lines:
    """A panel of a chart, with lines. If `base` is given, both axes are logarithmic with this
    base."""

    title: str
    axis: str
    lines: Sequence[Line]
    base: int | None = None

    def draw(self, axes: Axes) -> None:
        for line in self.lines:
            style = ":" if line.colour == GREY else "o-"
            axes.plot(line.x, line.y, style, color=line.colour, label=line.label, markersize=5)
        axes.set_xlabel(self.axis)
        axes.grid(axis="y", color="#e0e0e0", linewidth=0.8)
        for set_scale in (axes.set_xscale, axes.set_yscale) if self.base else ():
            set_scale("log", base=self.base)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter("{x:,.12g}")
            axis.set_minor_formatter("")


Panel = Bars | Lines


def chart(title: str, panels: Sequence[Panel]) -> Figure:
    """A figure with a title, all panels, and a common legend. From four panels on, a row has
    several panels."""
    columns = math.isqrt(len(panels))
    rows = math.ceil(len(panels) / columns)
    height = max(1 + 0.28 * len(panel.rows) if isinstance(panel, Bars) else 3.6 for panel in panels)
    width = 10 if columns == 1 else 5 + 4 * columns
    figure = Figure(figsize=(width, 1.6 + height * rows), layout="constrained")
    figure.suptitle(title, fontsize=12)
    labels: dict[str, Any] = {}
    for number, panel in enumerate(panels):
        axes = figure.add_subplot(rows, columns, number + 1)
        axes.set_title(panel.title, loc="left", fontsize=11)
        plain_axes(axes)
        panel.draw(axes)
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            labels.setdefault(label, handle)
    if len(labels) > 1:
        figure.legend(labels.values(), labels, loc="outside lower center", ncols=3, frameon=False)
    return figure
