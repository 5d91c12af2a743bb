"""The figures of `headscope.benchmarks.data` as a chart."""

import math
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from headscope.analysis.pictures.style import BLUE, GREY, ORANGE, plain_axes
from headscope.benchmarks.data_side import DTYPE, OURS, PEER
from headscope.benchmarks.timing import place

LOOKS: dict[str, Any] = {  # the larger marks below, where two are in one place
    PEER: {"color": BLUE, "marker": "s", "markersize": 9},
    OURS: {"color": ORANGE, "marker": "o", "markersize": 5},
}


def draw(figures: dict[str, Any]) -> Figure:
    """Microseconds of a batch, and memory of the process, against the size of the corpus."""
    figure = Figure(figsize=(10, 4.6), layout="constrained")
    figure.suptitle(
        f"Making a training batch of {figures['batch_size']} x {figures['block_size']} tokens, "
        f"{place(figures)}\nMedians of {figures['rounds']} rounds of {figures['batches']:,} "
        "batches, in turn; bars from least to most",
        fontsize=12,
    )
    times, memory = figure.subplots(1, 2)
    sizes = [size["tokens"] for size in figures["sizes"]]
    for name, look in LOOKS.items():
        sides = [size["sides"][name] for size in figures["sizes"]]
        found = [side["microseconds"] for side in sides]
        middle = [each["median"] for each in found]
        ends = [[each["median"] - each["min"], each["max"] - each["median"]] for each in found]
        times.errorbar(sizes, middle, np.transpose(ends), capsize=3, label=name, **look)
        after = [side["memory_mib"]["after"] or math.nan for side in sides]
        memory.plot(sizes, after, label=name, **look)
    whole = [size * np.dtype(DTYPE).itemsize / 2**20 for size in sizes]
    memory.plot(sizes, whole, color=GREY, linestyle=":", label="the corpus itself")
    times.set_title("Time of a batch", loc="left", fontsize=11)
    times.set_ylabel("microseconds (less is faster)")
    memory.set_title("Memory of the process after the last batch", loc="left", fontsize=11)
    memory.set_ylabel("MiB, without pages of the file")
    for panel in (times, memory):
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set_ylim(panel.get_ylim()[0] / 2, panel.get_ylim()[1] * 3)  # room for the legend
        panel.yaxis.set_major_formatter("{x:,g}")
        panel.yaxis.set_minor_formatter("")
        panel.set_xlabel("tokens in the corpus")
        plain_axes(panel)
        panel.grid(axis="y", color="#e0e0e0", linewidth=0.8)
        panel.legend(frameon=False, loc="upper left", ncols=3, fontsize=9)
    return figure
