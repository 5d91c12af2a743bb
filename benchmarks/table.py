"""Shows the results of a benchmark as a Markdown table and as a chart."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headscope.analysis.pictures.style import BLUE, GREY, ORANGE, plain_axes

Row = Mapping[str, Any]
"""A row of a table: its name is `side`. A value is a number, a text, or statistics over the rounds
of a benchmark: `median`, `min`, `max`, and `ratio` to the reference side."""


def table(rows: Sequence[Row], columns: Mapping[str, str]) -> str:
    """A Markdown table with one line for each row. `columns` maps keys of the rows to headings.

    Of statistics, the table shows the median, the range, and the ratio if there is one.
    """
    shown = {"": [str(row["side"]) for row in rows]}
    for key, heading in columns.items():
        values = [row.get(key) for row in rows]
        spreads = [value if isinstance(value, Mapping) else {} for value in values]
        shown[heading] = [number(figure(value)) for value in values]
        if any(spread and spread["min"] < spread["max"] for spread in spreads):
            shown[f"{heading}: range"] = [
                f"{number(spread['min'])} to {number(spread['max'])}" if spread else "-"
                for spread in spreads
            ]
        if any("ratio" in spread for spread in spreads):
            shown[f"{heading}: ratio"] = [number(spread.get("ratio"), ".3f") for spread in spreads]
    lines = [*zip(*([heading, *cells] for heading, cells in shown.items()), strict=True)]
    widths = [max(3, *map(len, column)) for column in zip(*lines, strict=True)]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    aligned = [[line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in [aligned[0], rule, *aligned[1:]])


def figure(value: Any) -> Any:
    """The value of a row, or its median."""
    return value["median"] if isinstance(value, Mapping) else value


def number(value: Any, form: str = ",.5g") -> str:
    if value is None or value != value:  # not a number
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float) or (isinstance(value, int) and value >= 10**12):
        return format(value, form)
    return f"{value:,}" if isinstance(value, int) else str(value)


@dataclass(frozen=True)
class Line:
    """A line in a chart, with the points (x, y). A grey line is a reference: it is dotted."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    colour: str = GREY


def bar_chart(
    title: str, groups: Mapping[str, Sequence[Row]], axis: str, bars: Mapping[str, str]
) -> Figure:
    """A chart with one panel for each group, and in it one horizontal bar for each row.

    `bars` maps the keys that are drawn to their names in the legend. A single key needs no legend:
    then, the bars of headscope have their own colour. The text at the end of a bar is its value,
    and the ratio to the reference if there is one.
    """
    heights = [1 + (0.1 + 0.26 * len(bars)) * len(rows) for rows in groups.values()]
    chart = Figure(figsize=(10, 1.2 + sum(heights)), layout="constrained")
    chart.suptitle(title, fontsize=12)
    panels = chart.subplots(len(groups), 1, squeeze=False, height_ratios=heights)[:, 0]
    for panel, (heading, rows) in zip(panels, groups.items(), strict=True):
        draw_bars(panel, rows, bars)
        panel.set_title("\n".join(textwrap.wrap(heading, 60)), loc="left", fontsize=11)
        panel.set_xlabel(axis)
    if len(bars) > 1:
        handles, labels = panels[0].get_legend_handles_labels()
        chart.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    return chart


def draw_bars(panel: Axes, rows: Sequence[Row], bars: Mapping[str, str]) -> None:
    height = 0.8 / len(bars)
    for place, (key, label) in enumerate(bars.items()):
        colours: Any = (BLUE, ORANGE)[place]
        if len(bars) == 1:
            ours = [str(row["side"]).startswith("headscope") for row in rows]
            colours = [ORANGE if each else BLUE for each in ours]
        heights = [line + (place - (len(bars) - 1) / 2) * height for line in range(len(rows))]
        widths = [figure(row.get(key)) or 0 for row in rows]
        drawn = panel.barh(heights, widths, color=colours, height=0.9 * height, label=label)
        texts = [number(figure(row.get(key))) for row in rows]
        for line, row in enumerate(rows):
            if isinstance(row.get(key), Mapping) and "ratio" in row[key]:
                texts[line] += f", {row[key]['ratio']:.2f}x"
        # The text may extend beyond the axes: the constrained layout makes room for it.
        panel.bar_label(drawn, texts, padding=5)
    names = ["\n".join(textwrap.wrap(str(row["side"]), 50)) for row in rows]
    panel.set_yticks(range(len(rows)), names)
    panel.xaxis.set_major_formatter("{x:,g}")
    panel.invert_yaxis()
    plain_axes(panel)


def line_chart(title: str, lines: Sequence[Line], x: str, y: str) -> Figure:
    """A chart with lines. `x` and `y` are the names of the axes."""
    chart = Figure(figsize=(10, 5.2), layout="constrained")
    panel = chart.subplots()
    panel.set_title(title, fontsize=12)
    plain_axes(panel)
    panel.grid(axis="y", color="#e0e0e0", linewidth=0.8)
    for line in lines:
        style = ":" if line.colour == GREY else "o-"
        panel.plot(line.x, line.y, style, color=line.colour, label=line.label, markersize=5)
    panel.set(xlabel=x, ylabel=y)
    labels = dict(zip(*reversed(panel.get_legend_handles_labels()), strict=True))
    panel.legend(labels.values(), labels, frameon=False)  # one entry for all lines of a side
    return chart
