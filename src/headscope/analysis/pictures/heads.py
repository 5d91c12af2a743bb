"""Charts of the metrics of heads, of their change during training, and of the similarity of heads.

Shapes: S checkpoints, L layers, H heads per layer, N = L * H heads of the model.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import numpy as np
from matplotlib.colors import Normalize, SymLogNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from torch import Tensor

from headscope.analysis.pictures.fonts import readable
from headscope.analysis.pictures.sheet import SMALL, Sheet, array, font_for, limits, numbers
from headscope.analysis.pictures.style import ORANGE, line_style
from headscope.errors import UserError

Names = Sequence[str]


def changes_of_heads(values: Tensor | Mapping[str, Tensor], *, title: str, label: str) -> Figure:
    """Draw how much each head changes a quantity, (L, H). `label` names the quantity and its unit.
    If `values` is a dictionary, each entry has its own heatmap, whose name comes before the label.

    The diverging colour scale is linear up to the median absolute change and logarithmic above it.
    So one very large change does not hide the others. All heatmaps have the same scale.
    """
    every = values if isinstance(values, Mapping) else {"": values}
    cells = {f"{name} {label}".strip(): array(each) for name, each in every.items()}
    together = np.concatenate([each.ravel() for each in cells.values()])
    sizes = np.abs(together[np.isfinite(together)])
    most = float(sizes.max(initial=0)) or 1.0
    linear = max(float(np.median(sizes)), most / 1000) if sizes.size else most
    norm = SymLogNorm(linthresh=linear, vmin=-most, vmax=most, base=10)
    texts = [numbers(each, "z.2g") for each in cells.values()]
    sheet = Sheet(len(cells), 2, *size_of(texts, 280), title)
    for number, (name, each) in enumerate(cells.items()):
        image = table(sheet, number, name, each, norm, texts[number])
    sheet.bar(image, "log scale", ticks=[-most, 0, most])
    return sheet.finish()


def patching_of_heads(denoising: Tensor, noising: Tensor, *, title: str) -> Figure:
    """Draw the scores (L, H) of activation patching, for both directions. A head without effect is
    white: its score is 0 for denoising and 1 for noising. Red heads carry the difference between
    the two texts. Blue heads have the opposite effect."""
    panels = {
        "denoising: the corrupted text, with one head of the clean text; 0 (white): no effect, 1 "
        "(red): the head restores the clean prediction": (array(denoising), 0, "RdBu_r"),
        "noising: the clean text, with one head of the corrupted text; 1 (white): no effect, 0 "
        "(red): the head destroys the clean prediction": (array(noising), 1, "RdBu"),
    }
    effects = np.stack([np.abs(cells - neutral) for cells, neutral, _ in panels.values()])
    most = max(1.0, float(effects[np.isfinite(effects)].max(initial=0)))
    texts = [numbers(cells, "z.2f") for cells, _, _ in panels.values()]
    sheet = Sheet(2, 2, *size_of(texts, 280), title)
    for number, (name, (cells, neutral, colours)) in enumerate(panels.items()):
        norm = Normalize(neutral - most, neutral + most)
        sheet.bar(table(sheet, number, name, cells, norm, texts[number], colours), "score")
    return sheet.finish()


def heatmaps_of(
    metrics: Mapping[str, Tensor],
    *,
    title: str,
    ends: Mapping[str, tuple[float, float]] | None = None,
    marks: Mapping[str, float] | None = None,
) -> Figure:
    """Draw one heatmap per metric (L, H), each with its own colour scale.

    `ends` contains the limits of the scales; the default is the minimum and maximum of the metric.
    `marks` contains the values of the metrics for uniform attention. Such a value is shown as a
    line on the colour scale and as a number after the name.
    """
    every = {name: array(values) for name, values in metrics.items()}
    ends, marks = ends or {}, marks or {}
    texts = {name: numbers(cells) for name, cells in every.items()}
    width, height = size_of(texts.values(), 150)
    columns = max(1, round(math.sqrt(len(every) * (height + 70) / (width + 90) * 1.5)))
    sheet = Sheet(len(every), columns, width, height, title)
    for number, (name, cells) in enumerate(every.items()):
        norm = Normalize(*ends.get(name, limits(cells)))
        caption = f"{name}  ({marks[name]:.3g})" if name in marks else name
        bar = sheet.bar(table(sheet, number, caption, cells, norm, texts[name]))
        if name in marks:
            bar.axhline(marks[name], color=ORANGE, linewidth=2)
    if marks:
        line = Line2D([], [], color=ORANGE, linewidth=2, label="uniform attention (in brackets)")
        sheet.legend([line])
    return sheet.finish()


def size_of(tables: Iterable[np.ndarray], width: float) -> tuple[float, float]:
    """The size in points that has room for each table of texts (L, H), at least `width` wide."""
    height = 60.0
    for texts in tables:
        if texts.ndim != 2 or not texts.size:
            raise UserError(f"a metric of shape {texts.shape} must be (layers, heads), not empty")
        cell = max(38, 0.65 * SMALL * max(map(len, texts.flat)) + 10)
        width, height = max(width, cell * texts.shape[1]), max(height, 26 * texts.shape[0])
    return width, height


def table(
    sheet: Sheet,
    number: int,
    name: str,
    cells: np.ndarray,
    norm: Normalize,
    texts: np.ndarray,
    colours: str | None = None,
) -> AxesImage:
    """Draw a heatmap of the values `cells` (L, H) with `texts` in the cells. `colours` is the name
    of a colour map; the default is the one of `Sheet.heatmap`."""
    panel, (layers, heads) = sheet.panels[number], map(range, cells.shape)
    panel.set(xticks=heads, yticks=layers, xlabel="head", ylabel="layer")
    image = sheet.heatmap(panel, name, cells, norm)
    if colours:
        image.set_cmap(colours)
    sheet.write(image, texts)
    return image


def similarity_matrix(similarity: Tensor, names: Names, *, title: str, label: str = "") -> Figure:
    """Draw the similarities (N, N) of heads with `names` such as L0H1. Lines separate the layers.
    The colour scale goes from 0 to 1, or from -1 to 1 if any value is negative. It goes further if
    any absolute value is above 1."""
    cells, count = array(similarity), len(names)
    if cells.shape != (count, count) or not count:
        raise UserError(f"{cells.shape=} must be (heads, heads), with a name for each: {count}")
    finite = cells[np.isfinite(cells)]
    reach = max(1.0, round(float(np.abs(finite).max(initial=0)), 3))  # 1.0000001 is 1
    norm = Normalize(-reach if (finite < 0).any() else 0, reach)
    cell = max(3, min(30, 560 // count)) if count > 6 else 240 / count
    sheet = Sheet(1, 1, cell * count, cell * count, title)
    [panel] = sheet.panels
    step = math.ceil((SMALL + 1) / cell)
    texts = [readable(name) for name in names[::step]]
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_ticks(range(0, count, step), texts, **font_for(SMALL, *texts))
    panel.tick_params(axis="x", rotation=90)
    image = sheet.heatmap(panel, label, cells, norm)
    if count <= 16:
        sheet.write(image, numbers(cells), cell)
    for number, (before, name) in enumerate(pairwise(names)):
        if before.partition("H")[0] != name.partition("H")[0]:
            for line in (panel.axvline, panel.axhline):
                line(number + 0.5, color="black" if norm.vmin else "#e0e0e0", linewidth=1.2)
    sheet.bar(image)
    return sheet.finish()


def history(steps: Sequence[int], metrics: Mapping[str, Tensor], *, title: str) -> Figure:
    """Draw each metric (S, L, H) over S training steps, one line per head, one colour per layer.
    The axis of the steps is logarithmic if at least half of them lie in its first quarter."""
    every = {name: array(values) for name, values in metrics.items()}
    sheet = Sheet(len(every), 2 if len(every) < 5 else 3, 300, 190, title)
    positive = [step for step in steps if step > 0]
    early = len(positive) > 2 and np.median(positive) < max(positive) / 4
    for panel, (name, values) in zip(sheet.panels, every.items(), strict=True):
        lines = []
        for layer in range(values.shape[1]):
            look = {"label": f"layer {layer}", **line_style(layer, len(steps))}
            lines.append(panel.plot(steps, values[:, layer], **look)[0])
        sheet.ticked(panel, "training step (logarithmic)" if early else "training step", "")
        if early:
            panel.set_xscale("symlog", linthresh=min(positive), linscale=0.4)  # can show step 0
            panel.xaxis.set_major_formatter("{x:g}")
            panel.xaxis.set_minor_formatter("")
        sheet.name(panel, name)
    sheet.legend(lines, "one line per head")
    return sheet.finish()
