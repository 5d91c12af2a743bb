"""Charts of a comparison, as matplotlib figures."""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from headscope.analysis.pictures.sheet import BLUE, COLOURS, GREY, plain_axes


def choice_chart(rows: Sequence[dict[str, Any]]) -> Figure:
    """A chart of the bits per byte of each choice, with the first choice at the top. If all choices
    were timed, a second panel shows the time of a training step.

    Each row has the keys `choice` and `bits_per_byte`, one key `seed_<n>` for each seed, and
    optionally the key `step_ms`.
    """
    timed = all("step_ms" in row for row in rows)
    figure = Figure(figsize=(10 if timed else 6.5, 1.4 + 0.36 * len(rows)), layout="constrained")
    panels = figure.subplots(1, 2 if timed else 1, squeeze=False, sharey=True)[0]
    positions = range(len(rows))
    for position, row in zip(positions, rows, strict=True):
        seeds = [value for key, value in row.items() if key.startswith("seed_")]
        panels[0].plot(seeds, [position] * len(seeds), "o", color=BLUE, alpha=0.45, markersize=6)
        panels[0].plot(row["bits_per_byte"], position, "|", color=BLUE, markersize=20, mew=2.5)
        panels[0].annotate(
            f"{row['bits_per_byte']:.3f}",
            (max(seeds), position),
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
        )
    panels[0].set_yticks(positions, [row["choice"] for row in rows])
    panels[0].invert_yaxis()
    panels[0].margins(x=0.16)
    panels[0].set_xlabel("bits per byte on the validation split (lower is better)")
    panels[0].set_title("Loss: dots are seeds, bars are means", fontsize=11)
    if timed:
        bars = panels[1].barh(positions, [row["step_ms"] for row in rows], color=GREY, height=0.6)
        panels[1].bar_label(bars, fmt="%.3g", padding=4)
        panels[1].margins(x=0.12)
        panels[1].set_xlabel("milliseconds per training step (median, lower is better)")
        panels[1].set_title("Speed", fontsize=11)
    for panel in panels:
        plain_axes(panel)
    return figure


def length_chart(rows: Sequence[dict[str, Any]], block_sizes: Sequence[int]) -> Figure:
    """A chart of bits per byte at several context lengths, for one seed. Each choice has one line.

    Each row has the key `choice`, and one key `bits_per_byte_at_<length>` for each context length
    that the choice's position encoding supports.
    """
    figure = Figure(figsize=(8.5, 5), layout="constrained")
    panel = figure.subplots()
    lines = []
    for number, row in enumerate(rows):
        supported = [size for size in block_sizes if f"bits_per_byte_at_{size}" in row]
        if not supported:
            continue
        values = [row[f"bits_per_byte_at_{size}"] for size in supported]
        limit = "" if supported == list(block_sizes) else f" (at most {max(supported)})"
        [line] = panel.plot(
            supported,
            values,
            color=COLOURS[number % len(COLOURS)],
            marker="osD^vP*X<>ph"[number % 12],
            linestyle=["-", "--"][number // len(COLOURS) % 2],
        )
        lines.append((values[-1], line, row["choice"] + limit))
    # Sort by the last value, so that the legend has the same order as the right ends of the lines.
    lines.sort(key=lambda line: -line[0])
    panel.set_xscale("log", base=2)
    panel.set_xticks(block_sizes, [str(size) for size in block_sizes])
    panel.minorticks_off()
    panel.set_xlabel("context length in tokens")
    panel.set_ylabel("bits per byte on the validation split, one seed (lower is better)")
    panel.legend(
        handles=[line for _, line, _ in lines],
        labels=[name for _, _, name in lines],
        frameon=False,
        loc="center left",
        bbox_to_anchor=(1, 0.5),
    )
    plain_axes(panel)
    return figure
