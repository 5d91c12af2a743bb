"""Measured times as bars, group by group."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headscope.analysis.pictures.style import BLUE, ORANGE, plain_axes


@dataclass(frozen=True)
class Bar:
    """A name, how long the bar is, and what is written at its end. Without a length only the words
    are there. `ours` is in another colour."""

    name: str
    length: float | None
    words: str
    ours: bool = False


def draw_bars(
    groups: dict[str, Sequence[Bar]], *, title: str, axis: str, logarithmic: bool = True
) -> Figure:
    """A panel for each group, by its title: with a logarithmic axis that all share, or each with a
    linear one of its own, from zero."""
    rows = max(len(bars) for bars in groups.values())
    figure = Figure(figsize=(9, 1.8 + (0.6 + 0.28 * rows) * len(groups)), layout="constrained")
    figure.suptitle(title, fontsize=12)
    panels = figure.subplots(len(groups), 1, sharex=logarithmic, squeeze=False)[:, 0]
    lengths = {name: [bar.length for bar in bars if bar.length] for name, bars in groups.items()}
    if logarithmic:
        logarithmic_axis(panels[0], [length for each in lengths.values() for length in each])
    for panel, (name, bars) in zip(panels, groups.items(), strict=True):
        panel.set_title(f"\n{name}", loc="left", fontsize=11)
        draw_group(panel, bars)
        if not logarithmic:
            panel.set_xlim(0, max(lengths[name]) * 1.45)
        panel.xaxis.set_major_formatter("{x:,g}")
        panel.xaxis.set_minor_formatter("")
    panels[-1].set_xlabel(axis)
    return figure


def logarithmic_axis(panel: Axes, lengths: Sequence[float], room: float = 0.35) -> None:
    """A logarithmic x axis that begins below the shortest bar; `room` is what it leaves for words,
    as a share of the longest bar."""
    start = 10 ** math.floor(math.log10(min(lengths) / 1.5))
    panel.set_xscale("log")
    panel.set_xlim(start, max(lengths) * (max(lengths) / start) ** room)


def draw_group(panel: Axes, bars: Sequence[Bar]) -> None:
    """Horizontal bars from top to bottom, each with its words at its end."""
    drawn = {number: bar for number, bar in enumerate(bars) if bar.length}
    lengths = [bar.length or 0.0 for bar in drawn.values()]
    container = panel.barh(
        list(drawn),
        lengths,
        color=[ORANGE if bar.ours else BLUE for bar in drawn.values()],
        height=0.7,
    )
    panel.bar_label(container, [bar.words for bar in drawn.values()], padding=5, fontsize=9)
    for number, bar in enumerate(bars):
        if not bar.length:
            across = panel.get_yaxis_transform()
            panel.text(0.01, number, bar.words, transform=across, va="center", fontsize=9)
    panel.set_yticks(range(len(bars)), [bar.name for bar in bars])
    panel.set_ylim(len(bars) - 0.4, -0.6)
    plain_axes(panel)
