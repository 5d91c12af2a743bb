"""A parallel-coordinates picture of a sweep: one vertical axis per swept key, one line per run."""

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

from headscope.analysis.pictures.style import GREY

LOG_RATIO = 16
"""An axis is logarithmic if its values are positive and the largest is at least this many times the
smallest."""

MAX_LABELS = 8
"""If a numeric axis has up to this many different values, its labels are these values. Otherwise,
five labels are spread over the axis."""

MIN_GAP = 0.055
"""The smallest distance between two labels, as a part of the height of an axis. Labels that are
closer are hidden."""

MAX_LABEL_LENGTH = 20
COLOURS = colormaps["viridis"]
BAR_WIDTH = 0.07


@dataclass(frozen=True)
class Coordinates:
    """The values of all runs on one axis. Heights are between 0 (bottom) and 1 (top)."""

    heights: list[float]
    labels: list[tuple[float, str]]
    logarithmic: bool = False


def parallel_coordinates(
    rows: Sequence[dict[str, Any]], keys: Sequence[str], *, title: str
) -> Figure:
    """Each run is a line through its values of `keys`, and ends at its validation loss, which also
    gives the line its colour. The best run has a thick line.

    Each row is a finished run: the texts of its settings, `run`, and `val_loss` in nats per token.
    """
    axes = [coordinates([row[key] for row in rows]) for key in keys]
    losses = numeric([row["val_loss"] for row in rows])
    width = len(keys)
    figure = Figure(figsize=(3.2 + 2.1 * width, 5.4), layout="constrained")
    panel = figure.subplots()
    points = np.array([axis.heights for axis in [*axes, losses]])  # (axes, runs)
    best = int(np.argmin([row["val_loss"] for row in rows]))
    # The best runs are drawn last, so that they are on top.
    for run in sorted(range(len(rows)), key=lambda run: -rows[run]["val_loss"]):
        panel.plot(
            range(width + 1),
            points[:, run],
            color=COLOURS(points[-1, run]),
            linewidth=3.5 if run == best else 1.3,
            alpha=1 if run == best else 0.8,
            solid_joinstyle="round",
        )
    for position, axis in enumerate(axes):
        panel.axvline(position, color=GREY, linewidth=1)
        write_labels(panel, axis, position - 0.03, "right")
    gradient = np.linspace(0, 1, 256)[:, None]
    panel.imshow(
        gradient,
        extent=(width, width + BAR_WIDTH, 0, 1),
        origin="lower",
        aspect="auto",
        cmap=COLOURS,
        zorder=3,
    )
    write_labels(panel, losses, width + BAR_WIDTH + 0.03, "left")
    names = [axis_name(key, axis) for key, axis in zip(keys, axes, strict=True)]
    names.append(axis_name("validation loss, nats per token", losses))
    panel.set_xticks([*range(width), width + BAR_WIDTH / 2], names, fontsize=10)
    panel.tick_params(axis="x", length=0, pad=8)
    panel.set_yticks([])
    panel.set_xlim(-0.45, width + BAR_WIDTH + 0.4)
    panel.set_ylim(-0.03, 1.03)
    panel.spines[:].set_visible(False)
    row = rows[best]
    panel.set_title(
        "\n".join(textwrap.wrap(title.replace("$", r"\$"), 24 + 22 * width))
        + f"\neach line is one run; thick: the best, run {row['run']} with loss"
        f" {row['val_loss']:.4f}",
        fontsize=11,
        pad=12,
    )
    return figure


def write_labels(panel: Any, axis: Coordinates, x: float, side: str) -> None:
    for height, label in axis.labels:
        panel.text(
            x,
            height,
            label.replace("$", r"\$"),
            ha=side,
            va="center",
            fontsize=9,
            zorder=4,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 1},
        )


def axis_name(name: str, axis: Coordinates) -> str:
    """The name in several short lines, which says whether the axis is logarithmic."""
    lines = (
        textwrap.wrap(name.replace(".", ". ").replace("/", "/ "), 18) if len(name) > 18 else [name]
    )
    lines = [line.replace(". ", ".").replace("/ ", "/") for line in lines]
    return "\n".join([*lines, *(["logarithmic"] if axis.logarithmic else [])]).replace("$", r"\$")


def coordinates(values: Sequence[str]) -> Coordinates:
    """Places the values of a key on an axis. If all values are numbers, the axis is linear or
    logarithmic. Otherwise, the different values have equal distances, in alphabetical order from
    the top."""
    numbers = [as_number(value) for value in values]
    if None not in numbers:
        return numeric([number for number in numbers if number is not None])
    names = sorted(set(values), reverse=True)
    place = {name: spread(index, 0, len(names) - 1) for index, name in enumerate(names)}
    labels = [(place[name], shortened(name)) for name in names]
    return Coordinates([place[value] for value in values], with_gaps(labels))


def numeric(values: Sequence[float]) -> Coordinates:
    low, high = min(values), max(values)
    logarithmic = low > 0 and high >= LOG_RATIO * low
    scale = math.log if logarithmic else float
    ends = scale(low), scale(high)
    shown = sorted(set(values))
    if len(shown) > MAX_LABELS:
        spaced = np.geomspace if logarithmic else np.linspace
        shown = [float(value) for value in spaced(low, high, 5)]
    labels = [(spread(scale(value), *ends), f"{value:.4g}") for value in shown]
    heights = [spread(scale(value), *ends) for value in values]
    return Coordinates(heights, with_gaps(labels), logarithmic)


def spread(value: float, low: float, high: float) -> float:
    """The height of `value` on an axis from `low` to `high`."""
    return (value - low) / (high - low) if high > low else 0.5


def with_gaps(labels: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """Hides labels that would lie on others. The labels at both ends stay."""
    kept = [labels[0]]
    for height, label in labels[1:-1]:
        if height - kept[-1][0] >= MIN_GAP and labels[-1][0] - height >= MIN_GAP:
            kept.append((height, label))
    return [*kept, *labels[1:][-1:]]


def shortened(name: str) -> str:
    return name if len(name) <= MAX_LABEL_LENGTH else f"{name[: MAX_LABEL_LENGTH - 1]}…"


def as_number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
