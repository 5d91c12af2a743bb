"""The figures of `headscope.benchmarks.attention` as a chart."""

from typing import Any

from matplotlib.figure import Figure

from headscope.benchmarks.attention import REFERENCE, Shape
from headscope.benchmarks.bars import Bar, draw_group, logarithmic_axis
from headscope.benchmarks.timing import place


def draw(figures: dict[str, Any]) -> Figure:
    """A row of panels for each shape: times on one logarithmic axis, and parameters.

    A wide bar is the time forward and backward, the black one in it the time forward alone.
    """
    shapes = figures["shapes"]
    changed = [word for word in figures["overrides"] if word.startswith("model.")]
    sequences = f"{figures['batch_size']} sequences at once"
    conditions = ", ".join([place(figures), "float32", sequences, *changed])
    rows = max(len(shape["attentions"]) for shape in shapes)
    figure = Figure(figsize=(14, 2.1 + (0.6 + 0.28 * rows) * len(shapes)), layout="constrained")
    figure.suptitle(
        "Time and parameters of one attention layer\n"
        "Wide bar: forward and backward; black: forward alone; medians of "
        f"{figures['rounds']} rounds; x: times {REFERENCE} (orange) in the same round\n"
        "explicit: every step by itself, weights returned, without the fused kernel\n"
        f"{conditions}",
        fontsize=12,
    )
    panels = figure.subplots(len(shapes), 2, sharex="col", width_ratios=(3, 2), squeeze=False)
    for (time_panel, parameter_panel), shape in zip(panels, shapes, strict=True):
        sizes = Shape(shape["tokens"], shape["embed_dim"], shape["heads"])
        time_panel.set_title(f"\n{sizes}", loc="left", fontsize=11)
        draw_group(time_panel, [time_bar(row) for row in shape["attentions"]])
        forward = {
            number: row["forward_milliseconds"]["median"]
            for number, row in enumerate(shape["attentions"])
            if "timer_paused" not in row
        }
        time_panel.barh(list(forward), list(forward.values()), color="black", height=0.2)
        draw_group(parameter_panel, [parameter_bar(row) for row in shape["attentions"]])
    times = [
        row[figure]["median"]
        for shape in shapes
        for row in shape["attentions"]
        if "timer_paused" not in row
        for figure in ("milliseconds", "forward_milliseconds")
    ]
    counts = [row["parameters"] for shape in shapes for row in shape["attentions"]]
    logarithmic_axis(panels[0, 0], times, room=0.7)
    panels[0, 1].set_xlim(0, 1.3 * max(counts))
    for panel in panels.flat:
        panel.xaxis.set_major_formatter("{x:,g}")
        panel.xaxis.set_minor_formatter("")
    panels[-1, 0].set_xlabel("milliseconds, on a logarithmic axis (less is faster)")
    panels[-1, 1].set_xlabel("parameters")
    panels[-1, 1].locator_params(axis="x", nbins=4)
    return figure


def time_bar(row: dict[str, Any]) -> Bar:
    name = row["attention"]
    if "timer_paused" in row:
        return Bar(name, None, row["timer_paused"])
    both, forward = row["milliseconds"]["median"], row["forward_milliseconds"]["median"]
    words = f"{both:,.2f} ms, {row['ratio']['median']:.2f}x; forward {forward:,.2f} ms"
    return Bar(name, both, words, ours=name == REFERENCE)


def parameter_bar(row: dict[str, Any]) -> Bar:
    count = row["parameters"]
    return Bar(row["attention"], count, f"{count:,}", ours=row["attention"] == REFERENCE)
