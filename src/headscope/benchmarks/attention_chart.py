"""The figures of `headscope.benchmarks.attention` as a chart."""

import math
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headscope.analysis.pictures.style import BLUE, ORANGE, plain_axes
from headscope.benchmarks.attention import REFERENCE, Shape


def draw(figures: dict[str, Any]) -> Figure:
    """A group of bars for each shape, all on one logarithmic axis of milliseconds."""
    shapes = figures["shapes"]
    bars = len(shapes[0]["attentions"])
    figure = Figure(figsize=(9, 1.8 + (0.6 + 0.28 * bars) * len(shapes)), layout="constrained")
    figure.suptitle(_title(figures), fontsize=12)
    panels = figure.subplots(len(shapes), 1, sharex=True, squeeze=False)[:, 0]
    panels[0].set_xscale("log")
    for panel, shape in zip(panels, shapes, strict=True):
        sizes = Shape(shape["tokens"], shape["embed_dim"], shape["heads"])
        panel.set_title(f"\n{sizes}", loc="left", fontsize=11)
        _draw_group(panel, shape["attentions"])
    medians = [bar.get_width() for panel in panels for bar in panel.patches]
    start = 10 ** math.floor(math.log10(min(medians) / 1.5))
    panels[0].set_xlim(start, max(medians) * (max(medians) / start) ** 0.35)  # room for labels
    panels[-1].xaxis.set_major_formatter("{x:,g}")
    panels[-1].xaxis.set_minor_formatter("")
    panels[-1].set_xlabel("milliseconds, on a logarithmic axis (less is faster)")
    return figure


def _draw_group(panel: Axes, rows: list[dict[str, Any]]) -> None:
    timed = {place: row for place, row in enumerate(rows) if "left_out" not in row}
    bars = panel.barh(
        list(timed),
        [row["milliseconds"]["median"] for row in timed.values()],
        color=[ORANGE if row["attention"] == REFERENCE else BLUE for row in timed.values()],
        height=0.7,
    )
    labels = [
        f"{row['milliseconds']['median']:,.2f} ms, {row['ratio']['median']:.2f}x"
        for row in timed.values()
    ]
    panel.bar_label(bars, labels, padding=5, fontsize=9)
    for place, row in enumerate(rows):
        if "left_out" in row:
            across = panel.get_yaxis_transform()
            panel.text(0.01, place, row["left_out"], transform=across, va="center", fontsize=9)
    panel.set_yticks(range(len(rows)), [row["attention"] for row in rows])
    panel.set_ylim(len(rows) - 0.4, -0.6)
    plain_axes(panel)


def _title(figures: dict[str, Any]) -> str:
    where, threads = figures["device"], figures["threads"]
    if where == "cpu":
        where = f"CPU with {threads} thread{'s' if threads > 1 else ''}"
    changed = [word for word in figures["overrides"] if word.startswith("model.")]
    conditions = [where, "float32", f"{figures['batch_size']} sequences at once", *changed]
    return (
        "Time of one attention layer, forward and backward\n"
        f"Medians of {figures['rounds']} rounds; x: times {REFERENCE} (orange) in the same round\n"
        "explicit: every step by itself, weights returned, without the fused kernel\n"
        f"{', '.join(conditions)}"
    )
