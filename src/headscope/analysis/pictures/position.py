"""Draws pictures of position encodings: of tables, of biases, and of rotations.

Shapes: P block_size, C embed_dim, H heads.
"""

from itertools import chain

import numpy as np
import torch
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from torch import Tensor

from headscope import nn
from headscope.analysis.pictures.heads import draw_maps
from headscope.analysis.pictures.sheet import SMALL, Sheet, array, limits, line_style
from headscope.errors import UserError


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
            added = position.bias(size, size)[:, -1].flip(-1)  # (H, P): of the last query
            curves(sheet, 0, "Bias added to the score of a key", added, "bias")
            weights = added.softmax(-1)
            curves(sheet, 1, "Attention weights if all scores were equal", weights, "weight")
        case nn.Rotary():
            caption = "Cosine of the angle that rotates a pair of dimensions of queries and keys"
            image(sheet, 0, caption, array(position.cos).T, "pair of dimensions")
            ones = torch.ones(1, 1, size, position.head_dim, device=position.cos.device)
            q, k = position.rotate(ones[:, :, -1:], ones)
            score = (q @ k.transpose(-2, -1))[0, 0].flip(-1) / position.head_dim  # (1, P)
            caption = "q · R(distance) k / head_dim, where q and k are all ones"
            curves(sheet, 1, caption, score, "score, 1 at distance 0")
        case nn.Learned() | nn.Sinusoidal() | nn.Digits() | nn.Index() | nn.Normalized():
            zeros = torch.zeros(1, size, position.embed_dim)
            device = next(chain(position.parameters(), position.buffers(), [zeros])).device
            table = array(position(zeros.to(device))[0])  # (P, C)
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
    If `causal`, the future (above the diagonal) stays blank. Raises UserError when the encoding has
    no bias, or when `tokens` exceeds its `block_size`."""
    bias = position.bias(tokens, tokens)  # (1 or H, T, T)
    name = type(position).__name__
    if bias is None:
        raise UserError(f"{name} adds no bias to scores: bias_map draws Alibi, Relative, HeadBias")
    title = f"{name}: bias of the scores, keys before {'' if causal else 'and after '}the query"
    return draw_maps(array(bias), [*map(str, range(tokens))], title, "bias", causal)


def image(sheet: Sheet, number: int, caption: str, values: np.ndarray, down: str) -> None:
    """Draw values (down, position) in panel `number`. The colours are diverging if any value is
    negative."""
    panel = sheet.panels[number]
    sheet.ticked(panel, "position", down, whole="xy")
    below = np.nanmin(values, initial=0) < -1e-6  # ignores rounding errors of a cosine
    norm = Normalize(*limits(values, diverging=bool(below)))
    sheet.bar(sheet.heatmap(panel, caption, values, norm))


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
