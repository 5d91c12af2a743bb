"""Draws pictures of position encodings: of tables, of biases, and of rotations.

Shapes: P block_size, C embed_dim, H heads, D head_dim.
"""

from functools import singledispatch
from itertools import chain

import numpy as np
import torch
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from headscope import nn
from headscope.analysis.pictures.maps import draw_maps, of_heads
from headscope.analysis.pictures.sheet import SMALL, Sheet, array, limits
from headscope.analysis.pictures.style import line_style
from headscope.errors import UserError


@singledispatch
def position_picture(position: nn.Position) -> Figure | None:
    """Draw a picture of the position encoding. Returns None for `NoPosition` and for types of
    encodings that are not headscope's.

    The picture of a table also shows the cosine similarity of each pair of positions. Biases are
    drawn by distance, or as a map if they depend on more than the distance (`HeadBias`). For
    `Rotary`, the picture shows the cosines of the rotation angles and a score by distance.
    """
    own = type(position).__module__.startswith("headscope.")
    assert not own, f"register a picture of {type(position).__name__} for position_picture"
    return None


position_picture.register(nn.NoPosition, lambda position: None)


@position_picture.register
@torch.no_grad()
def _table(
    position: nn.Learned | nn.Sinusoidal | nn.Digits | nn.Index | nn.Normalized,
) -> Figure:
    zeros = torch.zeros(1, position.block_size, position.embed_dim)
    device = next(chain(position.parameters(), position.buffers(), [zeros])).device
    table = array(position(zeros.to(device))[0])  # (P, C)
    used = table[:, : max(1, int(np.count_nonzero(table.any(axis=0))))]
    rest = f" (0 from dimension {used.shape[1]} on)" if used.shape < table.shape else ""
    sheet = Sheet(2, 2, 300, 230, f"{type(position).__name__} positions, added to embeddings")
    image(sheet, 0, f"Table added to the embeddings{rest}", used.T, "dimension")
    with np.errstate(invalid="ignore"):  # 0 / 0 is NaN for a vector of zeros
        vectors = table / np.linalg.norm(table, axis=1, keepdims=True)
    cosine = vectors @ vectors.T
    note = "; none for position 0, which is zero" if np.isnan(cosine).any() else ""
    image(sheet, 1, f"Cosine similarity of two positions{note}", cosine, "position")
    return sheet.finish()


@position_picture.register
@torch.no_grad()
def _bias(position: nn.Alibi | nn.Relative) -> Figure:
    size = position.block_size
    added = position.bias(size, size)[:, -1].flip(-1)  # (H, P): bias of the last query by distance
    sheet = Sheet(2, 2, 300, 230, f"{type(position).__name__}: biases of heads by distance")
    curves(sheet, 0, "Bias added to the score of a key", array(added), "bias")
    caption, weights = "Attention weights if all scores were equal", array(added.softmax(-1))
    curves(sheet, 1, caption, weights, "attention weight")
    return sheet.finish()


@position_picture.register
def _head_bias(position: nn.HeadBias) -> Figure:
    return bias_map(position, position.block_size, causal=True)


@torch.no_grad()
def bias_map(position: nn.Position, tokens: int, *, causal: bool = False) -> Figure:
    """Draw one map per head of the bias that `position` adds to the scores of `tokens` positions.
    If `causal`, the future (above the diagonal) stays blank. Raises UserError when the encoding has
    no bias, or when `tokens` exceeds its `block_size`."""
    bias = position.bias(tokens, tokens)  # (1 or H, T, T)
    name = type(position).__name__
    if bias is None:
        raise UserError(f"{name} adds no bias to scores: bias_map draws Alibi, Relative, HeadBias")
    title = f"{name}: bias of the scores, keys before {'' if causal else 'and after '}the query"
    maps = of_heads(array(bias), "bias")
    return draw_maps(maps, list(map(str, range(tokens))), title, causal=causal).finish()


@position_picture.register
@torch.no_grad()
def _rotary(position: nn.Rotary) -> Figure:
    size, width = position.block_size, position.head_dim
    sheet = Sheet(2, 2, 300, 230, "Rotary: rotates pairs of dimensions of queries and keys")
    image(sheet, 0, "Cosine of a pair's angle", array(position.cos).T, "pair of dimensions")
    ones = torch.ones(1, 1, size, width, device=position.cos.device)
    q, k = position.rotate(ones[:, :, -1:], ones)
    score = array((q @ k.transpose(-2, -1))[0, 0].flip(-1) / width)  # (1, P): by distance
    caption = "q · R(distance) k / head_dim, where q and k are all ones"
    curves(sheet, 1, caption, score, "score, 1 at distance 0")
    return sheet.finish()


def image(sheet: Sheet, number: int, caption: str, values: np.ndarray, down: str) -> None:
    """Draw values (down, position) in panel `number`. The colours are diverging if any value is
    negative."""
    panel = sheet.panels[number]
    sheet.ticked(panel, "position", down, whole="xy")
    below = np.nanmin(values, initial=0) < -1e-6  # ignores rounding errors of a cosine
    norm = Normalize(*limits(values, diverging=bool(below)))
    sheet.bar(sheet.heatmap(panel, caption, values, norm))


def curves(sheet: Sheet, number: int, caption: str, values: np.ndarray, down: str) -> None:
    """Draw values (heads, distances) in panel `number`, one line per head."""
    panel = sheet.panels[number]
    for head, line in enumerate(values):
        panel.plot(line, label=f"head {head}", **line_style(head, len(line)))
    sheet.ticked(panel, "distance, in tokens (key before query)", down)
    sheet.name(panel, caption)
    if len(values) > 1:
        size = min(SMALL, sheet.panel_size[1] / len(values) / 1.6)
        panel.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, fontsize=size)
