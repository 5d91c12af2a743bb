"""The figures of `headscope.benchmarks.scaling` as a chart."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headscope.analysis.pictures.style import BLUE, GREY, ORANGE, plain_axes
from headscope.benchmarks.fresh import NUMBERS
from headscope.benchmarks.scaling import CORPUS, conditions
from headscope.benchmarks.timing import place

TITLES = {
    "context": "context, in tokens",
    "width": "width (embed_dim)",
    "depth": "depth (layers)",
    "vocabulary": "vocabulary, in tokens",
    CORPUS: "corpus, in tokens",
}


def draw(figures: dict[str, Any]) -> Figure:
    """A panel for each axis, time and memory in it as multiples of what the smallest size takes."""
    figure = Figure(figsize=(11, 7.4), layout="constrained")
    figure.suptitle(
        "How the cost of a training step grows, "
        f"{place(figures)}, {NUMBERS[figures['precision']]}\n{conditions(figures)}",
        fontsize=12,
    )
    *panels, words = figure.subplots(2, 3).flat
    for panel, (axis, found) in zip(panels, figures["axes"].items(), strict=True):
        draw_axis(panel, found)
        panel.set_title(TITLES[axis], fontsize=11)
    for panel in (panels[0], panels[3]):
        panel.set_ylabel("times the smallest size's")
    words.axis("off")
    handles, labels = panels[0].get_legend_handles_labels()
    words.legend(handles, labels, loc="upper left", frameon=False)
    words.text(
        0.04,
        0.5,
        "Both axes are logarithmic.\n\n"
        "~ $n^p$: how a figure grows with the size n,\nfitted to the upper half of the sizes.\n\n"
        "Every step trains on equally many tokens:\na longer context means fewer sequences.\n\n"
        "Memory is that of weights, gradients,\noptimizer and activations together.",
        va="top",
        fontsize=10,
        transform=words.transAxes,
    )
    return figure


def draw_axis(panel: Axes, found: dict[str, Any]) -> None:
    sizes = found["sizes"]
    lines = [("time", BLUE, "o", [times["median"] for times in found["milliseconds"]])]
    if "peak_mib" in found:
        lines.append(("memory", ORANGE, "s", found["peak_mib"]))
    ends = {}
    for name, colour, marker, values in lines:
        multiples = [value / values[0] for value in values]
        panel.plot(sizes, multiples, color=colour, marker=marker, label=name)
        ends[name] = multiples[-1]
    grows = [size / sizes[0] for size in sizes]
    panel.plot(sizes, grows, color=GREY, linestyle=":", label="in proportion to the size")
    panel.set_xscale("log", base=2)
    panel.set_yscale("log", base=2)
    highest = max(*ends.values(), 2.0)
    panel.set_ylim(min(0.7, *(0.8 * end for end in ends.values())), 1.6 * highest)
    panel.set_xlim(sizes[0] / 1.2, sizes[-1] * (sizes[-1] / sizes[0]) ** 0.4)  # room for words
    panel.set_xticks(sizes, [short(size) for size in sizes])
    panel.yaxis.set_major_formatter("{x:g}")
    panel.minorticks_off()
    upper = max(ends, key=lambda name: ends[name])
    close = max(ends.values()) < 1.35 * min(ends.values())
    for name, colour, _, _ in lines:
        panel.annotate(
            f"{name} ~ $n^{{{found[f'{name}_exponent']:z.2f}}}$",
            (sizes[-1], ends[name]),
            xytext=(7, (6 if name == upper else -6) if close and len(ends) > 1 else 0),
            textcoords="offset points",
            va="center",
            color=colour,
            fontsize=9,
        )
    plain_axes(panel)


def short(size: int) -> str:
    """A size in few letters."""
    for unit, letter in ((10**6, "M"), (10**3, "k")):
        if size >= unit and size % unit == 0:
            return f"{size // unit:,}{letter}"
    return f"{size:,}"
