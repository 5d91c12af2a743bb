"""Attention maps, charts of the metrics of heads, and pictures of position encodings.

Shapes: S checkpoints, L layers, H heads per layer, N = L * H heads of the model, T tokens.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import chain, pairwise
from typing import Any

import numpy as np
import torch
from matplotlib.axis import XAxis, YAxis
from matplotlib.colors import Normalize, PowerNorm, SymLogNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from torch import Tensor

from headscope import nn
from headscope.analysis.sheet import (
    ORANGE,
    SMALL,
    TEXT,
    Sheet,
    array,
    font_for,
    joined,
    limits,
    line_style,
    numbers,
    picture_label,
)
from headscope.data.labels import reads_down, split_characters
from headscope.errors import UserError

Texts = Sequence[str]
FEW = 12
"""Maps of up to this many tokens have wide cells, with numbers in them and horizontal labels. The
maps of four heads then have the shape of a slide."""
MOST_NUMBERS = 2000
"""Tables of heads with more cells than this together have no numbers in their cells."""
WEIGHT_TICKS = (0, 0.01, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1)


def attention_maps(weights: Tensor, labels: Texts, *, title: str, causal: bool = True) -> Figure:
    """Draw the attention maps of all heads of one layer, from weights (H, T, T). `labels` are the
    texts of the T tokens. If `causal`, the future (above the diagonal) is grey. The square-root
    colour scale makes small weights visible. Raises UserError if there is no head or no token, or
    if the shape or the labels do not match."""
    scale = PowerNorm(0.5, vmin=0, vmax=1)
    unit = "attention weight\n(square-root colour scale)"
    return draw_maps(array(weights), labels, title, unit, causal, scale, WEIGHT_TICKS)


def draw_maps(
    maps: np.ndarray,
    labels: Sequence[str],
    title: str,
    unit: str,
    causal: bool,
    scale: Normalize | None = None,
    ticks: Sequence[float] | None = None,
) -> Figure:
    """Draw maps (H, T, T), one per head. The default colour scale is diverging around zero."""
    count, tokens = len(maps), len(labels)
    if not count or not tokens or maps.shape != (count, tokens, tokens):
        advice = f"give at least one map, and a label for each token, not {tokens}"
        raise UserError(f"maps of shape {maps.shape} must be (heads, tokens, tokens): {advice}")
    columns = math.ceil(count / round(math.sqrt(count)))
    width = height = max(1, max(320, min(512, 1120 // columns)) // tokens)
    if tokens <= FEW:
        width, height = max(37, 260 // tokens), max(20, 150 // tokens)
    sheet = Sheet(count, columns, width * tokens, height * tokens, title)
    labels = [*map(picture_label, labels)]
    future = np.triu(np.ones((tokens, tokens), dtype=bool), 1) & causal
    shown = np.where(future, np.nan, maps)
    scale = scale or Normalize(*limits(shown, diverging=True))
    for head, panel in enumerate(sheet.panels):
        panel.set(xticks=[], yticks=[])
        image = sheet.heatmap(panel, f"head {head}", shown[head], scale)
        if head % columns == 0:
            name_cells(panel.yaxis, labels, height, math.inf)
            panel.set_ylabel("query: the token that looks")
        if head + columns >= count:
            name_cells(panel.xaxis, labels, width, width if tokens <= FEW else 0)
            panel.set_xlabel("key: the token it looks at")
        if tokens <= FEW:
            sheet.write(image, np.where(future, "", numbers(maps[head])), width)
        panel.set_facecolor("#f2f2f2")  # a bias of zero is white
        if head == min(columns, count) - 1:
            sheet.bar(image, unit, ticks)
    return sheet.finish()


def name_cells(axis: XAxis | YAxis, labels: Sequence[str], cell: float, width: float) -> None:
    """Label cells that are `cell` points apart. A line of a label is up to `width` points wide. If
    `width` is 0, labels without a Chinese character are rotated instead. If there is little room,
    only every n-th token has a label."""
    size = min(TEXT, max(7.5, cell - 1))
    every = math.ceil((size + 0.5) / cell)
    texts, angles = [], []
    for text in labels[::every]:
        upright = width > 0 or reads_down(text)
        characters = split_characters(text)
        codes = ([*char] if char.startswith("U+") else [char] for char in characters)
        texts.append(joined([*chain(*codes)], width, size) if upright else text)
        angles.append(0 if upright else 90)
    font = font_for(size, *texts)
    axis.set_ticks(range(0, len(labels), every), texts, linespacing=1, **font)
    for tick, angle in zip(axis.get_ticklabels(), angles, strict=True):
        tick.set_rotation(angle)


def changes_of_heads(metrics: Mapping[str, Tensor], replacement: str) -> Figure:
    """Draw how much the loss changes without each head, with a heatmap for each of the metrics
    (L, H) `loss_change` and `loss_change_estimate`. `replacement` is what replaces the heads.

    The diverging colour scale is linear up to the median absolute change and logarithmic above it.
    So one very large change does not hide the others. All heatmaps have the same scale.
    """
    label = (
        f"change of the loss in nats per token when a head is replaced by {replacement}; above 0, "
        "the head helps"
    )
    names = {"loss_change": "measured:", "loss_change_estimate": "estimated from gradients:"}
    cells = {
        f"{text} {label}": array(metrics[name]) for name, text in names.items() if name in metrics
    }
    sizes = np.abs([*cells.values()])
    sizes = sizes[np.isfinite(sizes)]
    most = float(sizes.max(initial=0)) or 1.0
    linear = max(float(np.median(sizes)), most / 1000) if sizes.size else most
    scale = SymLogNorm(linthresh=linear, vmin=-most, vmax=most, base=10)
    title = "Change of the loss without each head"
    sheet, images = draw_tables(title, cells, [scale] * len(cells), "z.2g", columns=2)
    sheet.bar(images[-1], "log scale", ticks=[-most, 0, most])
    return sheet.finish()


def patching_of_heads(denoising: Tensor, noising: Tensor, *, title: str) -> Figure:
    """Draw the scores (L, H) of activation patching, for both directions. A head without effect is
    white: its score is 0 for denoising and 1 for noising. Red heads carry the difference between
    the two texts. Blue heads have the opposite effect."""
    panels = {
        "denoising: the corrupted text, with one head of the clean text; 0 (white): no effect, 1 "
        "(red): the head restores the clean prediction": array(denoising),
        "noising: the clean text, with one head of the corrupted text; 1 (white): no effect, 0 "
        "(red): the head destroys the clean prediction": array(noising),
    }
    effects = np.abs([array(denoising), array(noising) - 1])
    most = max(1.0, float(effects[np.isfinite(effects)].max(initial=0)))
    scales = [Normalize(-most, most), Normalize(1 - most, 1 + most)]
    colours = ["RdBu_r", "RdBu"]
    sheet, images = draw_tables(title, panels, scales, "z.2f", columns=2, colours=colours)
    for image in images:
        sheet.bar(image, "score")
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
    ends, marks = ends or {}, marks or {}
    every = {name: array(values) for name, values in metrics.items()}
    scales = [Normalize(*ends.get(name, limits(cells))) for name, cells in every.items()]
    captions = {name: f"{name}  ({mark:.3g})" for name, mark in marks.items()}
    cells = {captions.get(name, name): values for name, values in every.items()}
    sheet, images = draw_tables(title, cells, scales, width=150)
    look: Any = {"color": ORANGE, "linewidth": 2, "label": "uniform attention (in brackets)"}
    bars = dict(zip(metrics, map(sheet.bar, images), strict=True))
    lines = [bars[name].axhline(mark, **look) for name, mark in marks.items() if name in bars]
    if lines:
        sheet.legend(lines[:1])
    return sheet.finish()


def draw_tables(
    title: str,
    cells: Mapping[str, np.ndarray],
    scales: Sequence[Normalize],
    form: str = "",
    width: float = 280,
    columns: int = 0,
    colours: Sequence[str] = (),
) -> tuple[Sheet, list[AxesImage]]:
    """Draw heatmaps that are at least `width` points wide, with a number in each of their `cells`
    (L, H) unless they have more than MOST_NUMBERS cells together. Each has its name and its colour
    scale."""
    texts = [numbers(values, form) for values in cells.values()]
    with_numbers = sum(written.size for written in texts) <= MOST_NUMBERS
    images, height, row = [], 60.0, 26 if with_numbers else 12
    for written in texts:
        cell = max(38, 0.65 * SMALL * max(map(len, written.flat)) + 10) if with_numbers else 12
        width, height = max(width, cell * written.shape[1]), max(height, row * written.shape[0])
    columns = columns or max(1, round(math.sqrt(len(cells) * (height + 70) / (width + 90) * 1.5)))
    sheet = Sheet(len(cells), columns, width, height, title)
    for number, (name, written) in enumerate(zip(cells, texts, strict=True)):
        panel, (layers, heads) = sheet.panels[number], map(range, written.shape)
        panel.set(xticks=heads, yticks=layers, xlabel="head", ylabel="layer")
        cmap = colours[number] if colours else ""
        image = sheet.heatmap(panel, name, cells[name], scales[number], cmap)
        if with_numbers:
            sheet.write(image, written)
        images.append(image)
    return sheet, images


def similarity_matrix(similarity: Tensor, names: Texts, *, title: str, label: str = "") -> Figure:
    """Draw the similarities (N, N) of heads with `names` such as L0H1. Lines separate the layers.
    The colour scale goes from 0 to 1, or from -1 to 1 if any value is negative. It goes further if
    any absolute value is above 1."""
    cells, count = array(similarity), len(names)
    finite = cells[np.isfinite(cells)]
    reach = max(1.0, round(float(np.abs(finite).max(initial=0)), 3))  # 1.0000001 is 1
    scale = Normalize(-reach if (finite < 0).any() else 0, reach)
    cell = max(3, min(30, 560 // count)) if count > 6 else 240 / count
    sheet = Sheet(1, 1, cell * count, cell * count, title)
    [panel] = sheet.panels
    name_cells(panel.xaxis, names, cell, 0)
    name_cells(panel.yaxis, names, cell, math.inf)
    image = sheet.heatmap(panel, label, cells, scale)
    if count <= 16:
        sheet.write(image, numbers(cells), cell)
    for end in layer_ends(names):
        for line in (panel.axvline, panel.axhline):
            line(end, color="black" if scale.vmin else "#e0e0e0", linewidth=1.2)
    sheet.bar(image)
    return sheet.finish()


def layer_ends(names: Texts) -> list[float]:
    """Between which rows of heads with `names` one layer ends and the next one begins."""
    layers = [name.partition("H")[0] for name in names]
    return [row + 0.5 for row, (one, next_one) in enumerate(pairwise(layers)) if one != next_one]


def parts_of_heads(
    panels: Mapping[str, Tensor], heads: Texts, parts: Texts, *, title: str, label: str
) -> Figure:
    """Draw tables (N, P) beside each other, with a row for each of the `heads`, a column for each
    of the `parts` of the residual stream, and one diverging colour scale. NaN is blank."""
    cells = {name: array(values) for name, values in panels.items()}
    scale = Normalize(*limits(np.stack([*cells.values()]), diverging=True))
    height, width = (max(4, min(30, 560 // len(names))) for names in (heads, parts))
    sheet = Sheet(len(cells), len(cells), width * len(parts), height * len(heads), title)
    for panel, (name, values) in zip(sheet.panels, cells.items(), strict=True):
        name_cells(panel.xaxis, parts, width, 0)
        name_cells(panel.yaxis, heads, height, math.inf)
        image = sheet.heatmap(panel, name, values, scale)
        if len(parts) <= 16:
            sheet.write(image, np.where(np.isnan(values), "", numbers(values, "z.2f")), width)
        for end in layer_ends(heads):
            panel.axhline(end, color="black", linewidth=1.2)
    sheet.bar(image, label)
    return sheet.finish()


def history(by_step: Mapping[int, Mapping[str, Tensor]], *, title: str) -> Figure:
    """Draw each metric (L, H) that all training steps have over the steps, one line per head, one
    colour per layer. The axis of the steps is logarithmic if at least half of them lie in its first
    quarter."""
    steps, [first, *_] = [*by_step], [*by_step.values()]
    shared = [name for name in first if all(name in metrics for metrics in by_step.values())]
    sheet = Sheet(len(shared), 2 if len(shared) < 5 else 3, 300, 190, title)
    positive = [step for step in steps if step > 0]
    early = len(positive) > 2 and np.median(positive) < max(positive) / 4
    for panel, name in zip(sheet.panels, shared, strict=True):
        values = array(torch.stack([metrics[name] for metrics in by_step.values()], dim=1))
        lines = [
            panel.plot(steps, heads, label=f"layer {layer}", **line_style(layer, len(steps)))[0]
            for layer, heads in enumerate(values)  # (S, H) each
        ]
        sheet.ticked(panel, "training step (logarithmic)" if early else "training step", "")
        if early:
            panel.set_xscale("symlog", linthresh=min(positive), linscale=0.4)  # can show step 0
            panel.xaxis.set_major_formatter("{x:g}")
            panel.xaxis.set_minor_formatter("")
        sheet.name(panel, name)
    sheet.legend(lines, "one line per head")
    return sheet.finish()


@torch.no_grad()
def position_picture(position: nn.Position) -> Figure | None:
    """Draw a picture of the position encoding. Returns None for `NoPosition` and for types of
    encodings that are not headscope's.

    The picture of a table also shows the cosine similarity of each pair of positions. Biases are
    drawn by distance, or as a map if they depend on more than the distance (`HeadBias`). For
    `Rotary`, the picture shows the cosines of the rotation angles and a score by distance.
    """
    size = position.block_size
    sheet = Sheet(2, 2, 300, 230, f"Position encoding {type(position).__name__}")
    match position:
        case nn.HeadBias():
            return bias_map(position, size, causal=True)
        case nn.Alibi() | nn.Relative():
            added = position.bias(size, size)[:, -1].flip(-1)  # (H, T): of the last query
            curves(sheet, 0, "Bias added to the score of a key", added, "bias")
            weights = added.softmax(-1)
            curves(sheet, 1, "Attention weights if all scores were equal", weights, "weight")
        case nn.Rotary():
            caption = "Cosine of the angle that rotates a pair of dimensions of queries and keys"
            image(sheet, 0, caption, array(position.cos).T, "pair of dimensions")
            ones = torch.ones(1, 1, size, position.head_dim, device=position.cos.device)
            q, k = position.rotate(ones[:, :, -1:], ones)
            score = (q @ k.transpose(-2, -1))[0, 0].flip(-1) / position.head_dim  # (1, T)
            caption = "q · R(distance) k / head_dim, where q and k are all ones"
            curves(sheet, 1, caption, score, "score, 1 at distance 0")
        case nn.Learned() | nn.Sinusoidal() | nn.Digits() | nn.Index() | nn.Normalized():
            zeros = torch.zeros(1, size, position.embed_dim)
            device = next(chain(position.parameters(), position.buffers(), [zeros])).device
            table = array(position(zeros.to(device))[0])  # (T, C)
            used = table[:, : max(1, int(np.count_nonzero(table.any(axis=0))))]
            rest = f" (0 from dimension {used.shape[1]} on)" if used.shape < table.shape else ""
            image(sheet, 0, f"Table added to the embeddings{rest}", used.T, "dimension")
            with np.errstate(invalid="ignore"):  # 0 / 0 is NaN for a vector of zeros
                vectors = table / np.linalg.norm(table, axis=1, keepdims=True)
            cosine = vectors @ vectors.T
            note = "; none for position 0, which is zero" if np.isnan(cosine).any() else ""
            image(sheet, 1, f"Cosine similarity of two positions{note}", cosine, "position")
        case _:
            return None
    return sheet.finish()


@torch.no_grad()
def bias_map(position: nn.Position, tokens: int, *, causal: bool = False) -> Figure:
    """Draw one map per head of the bias that `position` adds to the scores of `tokens` positions.
    If `causal`, the future (above the diagonal) is grey. Raises UserError when the encoding has
    no bias, or when `tokens` exceeds its `block_size`."""
    bias = position.bias(tokens, tokens)  # (1 or H, T, T)
    name = type(position).__name__
    if bias is None:
        raise UserError(f"{name} adds no bias to scores: bias_map draws Alibi, Relative, HeadBias")
    title = f"{name}: bias of the scores, keys before {'' if causal else 'and after '}the query"
    return draw_maps(array(bias), [*map(str, range(tokens))], title, "bias", causal)


def image(sheet: Sheet, number: int, caption: str, values: np.ndarray, down: str) -> None:
    """Draw values (down, position) in panel `number`."""
    sheet.ticked(sheet.panels[number], "position", down, axis="both")
    below = np.nanmin(values, initial=0) < -1e-6  # ignores rounding errors of a cosine
    norm = Normalize(*limits(values, diverging=bool(below)))
    sheet.bar(sheet.heatmap(sheet.panels[number], caption, values, norm))


def curves(sheet: Sheet, number: int, caption: str, values: Tensor, down: str) -> None:
    """Draw values (heads, distances) in panel `number`, one line per head."""
    panel = sheet.panels[number]
    for head, line in enumerate(array(values)):
        panel.plot(line, label=f"head {head}", **line_style(head, len(line)))
    sheet.ticked(panel, "distance, in tokens (key before query)", down)
    sheet.name(panel, caption)
    if len(values) > 1:
        size = min(SMALL, sheet.panel_size[1] / len(values) / 1.6)
        panel.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, fontsize=size)
