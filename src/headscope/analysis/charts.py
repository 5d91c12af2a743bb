"""Charts of measured figures, each a matplotlib Figure that the caller saves."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

BLUE, ORANGE, GREY = "#0072b2", "#d55e00", "#666666"
"""Okabe and Ito's, which the colour-blind can tell apart."""


def choice_chart(rows: Sequence[dict[str, Any]]) -> Figure:
    """What each choice learned, the best above, and what a step of it costs where that is known.

    A row has `choice`, `bits_per_byte`, `seed_<n>` for each seed, and perhaps `step_ms`.
    """
    rows = sorted(rows, key=lambda row: row["bits_per_byte"])
    timed = all("step_ms" in row for row in rows)
    figure = Figure(figsize=(10 if timed else 6.5, 1.4 + 0.36 * len(rows)), layout="constrained")
    panels = figure.subplots(1, 2 if timed else 1, squeeze=False, sharey=True)[0]
    places = range(len(rows))
    for place, row in zip(places, rows, strict=True):
        seeds = [value for key, value in row.items() if key.startswith("seed_")]
        panels[0].plot(seeds, [place] * len(seeds), "o", color=BLUE, alpha=0.45, markersize=6)
        panels[0].plot(row["bits_per_byte"], place, "|", color=BLUE, markersize=20, mew=2.5)
        panels[0].annotate(
            f"{row['bits_per_byte']:.3f}",
            (max(seeds), place),
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
        )
    panels[0].set_yticks(places, [row["choice"] for row in rows])
    panels[0].invert_yaxis()
    panels[0].margins(x=0.16)
    panels[0].set_xlabel("bits per byte on the validation split (lower is better)")
    panels[0].set_title("What it learned: dots are seeds, bars their mean", fontsize=11)
    if timed:
        bars = panels[1].barh(places, [row["step_ms"] for row in rows], color=GREY, height=0.6)
        panels[1].bar_label(bars, fmt="%.0f", padding=4)
        panels[1].margins(x=0.12)
        panels[1].set_xlabel("milliseconds of a training step (median)")
        panels[1].set_title("What it costs", fontsize=11)
    for panel in panels:
        _plain(panel)
    return figure


def length_chart(rows: Sequence[dict[str, Any]], block_sizes: Sequence[int]) -> Figure:
    """Bits per byte at context lengths beyond that of training, a line for each choice.

    A row has `choice` and `bits_per_byte_at_<length>` for the lengths that its encoding reaches.
    """
    figure = Figure(figsize=(8, 5), layout="constrained")
    panel = figure.subplots()
    markers = "osD^vP*X<>ph"
    for row, marker in zip(rows, markers, strict=False):
        known = [size for size in block_sizes if f"bits_per_byte_at_{size}" in row]
        values = [row[f"bits_per_byte_at_{size}"] for size in known]
        panel.plot(known, values, marker=marker, label=row["choice"])
    panel.set_xscale("log", base=2)
    panel.set_xticks(block_sizes, [str(size) for size in block_sizes])
    panel.minorticks_off()
    panel.set_xlabel("context, in tokens")
    panel.set_ylabel("bits per byte on the validation split (lower is better)")
    panel.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    _plain(panel)
    return figure


def _plain(panel: Axes) -> None:
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(axis="x", color="#e0e0e0", linewidth=0.8)
    panel.set_axisbelow(True)
