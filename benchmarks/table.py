"""Shows the results of a benchmark as a Markdown table and as a chart."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from headscope.analysis.sheet import BLUE, GREY, ORANGE, plain_axes

Row = Mapping[str, Any]
"""A row of a table: its name is `side`. A value is a number, a text, or statistics over the rounds
of a benchmark: `median`, `min`, `max`, and `ratio` to the reference side."""


def table(rows: Sequence[Row], columns: Sequence[str] = ()) -> str:
    """A Markdown table with one line for each row. `columns` are the keys to show, by default all
    keys of the first row.

    Of statistics, the table shows the median, the range, and the ratio if there is one.
    """
    columns = columns or [key for key in rows[0] if key not in ("side", "marks")]
    shown = {"": [str(row["side"]) for row in rows]}
    for key in columns:
        values = [row.get(key) for row in rows]
        shown[heading(key)] = [number(value) for value in values]
        spreads = [value for value in values if isinstance(value, Mapping)]
        if any(spread["min"] < spread["max"] for spread in spreads):
            ranges = [f"{number(spread['min'])} to {number(spread['max'])}" for spread in spreads]
            shown[f"{heading(key)}: range"] = ranges
        if any("ratio" in spread for spread in spreads):
            shown[f"{heading(key)}: ratio"] = [number(each["ratio"], ".3f") for each in spreads]
    lines = [*zip(*([name, *cells] for name, cells in shown.items()), strict=True)]
    widths = [max(3, *map(len, column)) for column in zip(*lines, strict=True)]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    aligned = [[line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in [aligned[0], rule, *aligned[1:]])


def heading(key: str) -> str:
    """The key as words, with units as they are written."""
    words = {"mib": "MiB", "mb": "MB", "mfu": "MFU"}
    return " ".join(words.get(word, word) for word in key.split("_"))


def number(value: Any, form: str = ",.5g") -> str:
    """The text of a value of a row. Of statistics, it is that of the median."""
    if isinstance(value, Mapping):
        return number(value["median"], form)
    if value is None or value != value:  # not a number
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and value < 10**12:
        return f"{value:,}"
    return format(value, form) if isinstance(value, int | float) else str(value)


def bar_chart(title: str, groups: Mapping[str, Sequence[Row]], axis: str, key: str) -> Figure:
    """A chart with one panel for each group, and in it one horizontal bar for each row: its
    statistics `key`. The text at the end of a bar is the median, and the ratio to the reference."""
    heights = [1 + 0.36 * len(rows) for rows in groups.values()]
    chart = Figure(figsize=(10, 1.2 + sum(heights)), layout="constrained")
    chart.suptitle(title, fontsize=12)
    panels = chart.subplots(len(groups), 1, squeeze=False, height_ratios=heights)[:, 0]
    for panel, (group, rows) in zip(panels, groups.items(), strict=True):
        found = [row[key] for row in rows]
        bars = panel.barh(range(len(rows)), [each["median"] for each in found], 0.72, color=BLUE)
        # The text may extend beyond the axes: the constrained layout makes room for it.
        texts = [f"{number(each['median'])}, {each['ratio']:.2f}x" for each in found]
        panel.bar_label(bars, texts, padding=5)
        panel.set_yticks(range(len(rows)), [textwrap.fill(row["side"], 50) for row in rows])
        panel.xaxis.set_major_formatter("{x:,g}")
        panel.invert_yaxis()
        plain_axes(panel)
        panel.set_title(textwrap.fill(group, 60), loc="left", fontsize=11)
        panel.set_xlabel(axis)
    return chart


def line_chart(title: str, rows: Sequence[Row], axis: str, target: float | None) -> Figure:
    """A chart of the `loss` of each row's `marks` against their `seconds`. `axis` is the name of
    the vertical axis. The rows of a side have one colour, and a dotted line shows the target."""
    chart = Figure(figsize=(10, 5.2), layout="constrained")
    panel = chart.subplots()
    panel.set_title(title, fontsize=12)
    plain_axes(panel)
    panel.grid(axis="y", color="#e0e0e0", linewidth=0.8)
    sides = [*dict.fromkeys(row["side"] for row in rows)]
    for row in rows:
        seconds, losses = ([mark[key] for mark in row["marks"]] for key in ("seconds", "loss"))
        colour = (ORANGE, BLUE)[sides.index(row["side"])]
        panel.plot(seconds, losses, "o-", color=colour, label=row["side"], markersize=5)
    if target is not None:
        panel.axhline(target, linestyle=":", color=GREY, label=f"target: {target}")
    panel.set(xlabel="seconds of training", ylabel=axis)
    labels = dict(zip(*reversed(panel.get_legend_handles_labels()), strict=True))
    panel.legend(labels.values(), labels, frameon=False)  # one entry for all lines of a side
    return chart
