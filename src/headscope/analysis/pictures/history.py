"""How figures of heads moved while a model was trained.

Shapes: S checkpoints, L layers, H heads of a layer.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter
from torch import Tensor

from headscope.analysis.pictures.heads import arrays
from headscope.analysis.pictures.sheet import SMALL, Sheet, ticked
from headscope.analysis.pictures.style import line_style


def history(steps: Sequence[int], figures: Mapping[str, Tensor], *, title: str) -> Figure:
    """How every named figure (S, L, H) moved over checkpoints at S steps: one line per head, in the
    colour of its layer. The axis of steps is logarithmic when most of them are early."""
    every = arrays(figures)
    sheet = Sheet(len(every), 2 if len(every) < 5 else 3, 300, 190, title)
    for panel, (name, values) in zip(sheet.panels, every.items(), strict=True):
        for layer, head in np.ndindex(values.shape[1:]):
            panel.plot(steps, values[:, layer, head], **line_style(layer, len(steps)))
        ticked(panel, "training step", "")
        space_evenly(panel, steps)
        sheet.name(panel, name)
    layers = max(values.shape[1] for values in every.values())
    looks = [(f"layer {layer}", line_style(layer, len(steps))) for layer in range(layers)]
    sheet.figure.legend(
        handles=[Line2D([], [], label=name, **look) for name, look in looks],
        title="a line is a head",
        loc="outside lower left",
        frameon=False,
        ncols=4,
    )
    return sheet.finish()


def space_evenly(panel: Axes, steps: Sequence[int]) -> None:
    """Make the axis of steps logarithmic when half of the checkpoints lie in its first quarter."""
    above = [step for step in steps if step > 0]
    if len(above) > 2 and np.median(above) < max(above) / 4:
        panel.set_xscale("symlog", linthresh=min(above), linscale=0.4)  # step 0 has no logarithm
        panel.xaxis.set_major_formatter("{x:g}")
        panel.xaxis.set_minor_formatter(NullFormatter())
        panel.set_xlabel("training step (logarithmic)", fontsize=SMALL)
