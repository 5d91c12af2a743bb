"""What a position encoding is, drawn: its table, its biases, or the rotation it gives.

Shapes: P block_size, C embed_dim, H heads, D head_dim.
"""

from collections.abc import Mapping
from functools import singledispatch

import numpy as np
import torch
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from torch.nn.functional import normalize

from headscope import nn
from headscope.analysis.pictures.maps import draw_maps, of_heads
from headscope.analysis.pictures.sheet import SMALL, Sheet, array, heatmap, limits, ticked
from headscope.analysis.pictures.style import BLUE, line_style
from headscope.errors import UserError

DISTANCE = "distance, in tokens (key before query)"


@singledispatch
def position_picture(position: nn.Position) -> Figure | None:
    """What `position` is; None for an encoding that adds nothing.

    A table that is added: the table, some of its dimensions as curves, and how alike two positions
    are. A bias: what each head adds to the score of a key. Raises TypeError for an encoding without
    a picture here.
    """
    raise TypeError(f"{type(position).__name__} has no picture: register one for position_picture")


@position_picture.register
def _none(position: nn.NoPosition) -> None:
    return None


@position_picture.register
@torch.no_grad()
def _table(
    position: nn.Learned | nn.Sinusoidal | nn.Digits | nn.Index | nn.Normalized,
) -> Figure:
    table = array(position(torch.zeros(1, position.block_size, position.embed_dim))[0])  # (P, C)
    used = table[:, : max(1, int(np.count_nonzero(table.any(axis=0))))]
    sheet = new_sheet(3, f"{type(position).__name__} positions: what is added to the embeddings")
    rest = f" (0 from dimension {used.shape[1]} on)" if used.shape < table.shape else ""
    image(sheet, 0, f"Table added to the embeddings{rest}", used.T, "position", "dimension")
    chosen = list(range(min(4, used.shape[1])))
    if isinstance(position, nn.Sinusoidal):
        chosen = sorted({2 * (position.embed_dim * share // 16) for share in range(4)})
    strips(sheet, 1, "Some of its dimensions", {f"dim. {each}": used[:, each] for each in chosen})
    vectors = normalize(torch.from_numpy(table), dim=-1)
    cosine = (vectors @ vectors.T).numpy()
    blank = ~table.any(axis=1)  # a vector of zeros has no direction
    cosine[blank], cosine[:, blank] = np.nan, np.nan
    note = "; position 0 is zero and has none" if blank.any() else ""
    ends = (-1.0 if np.nanmin(cosine, initial=0) < -1e-6 else 0.0, 1.0)
    image(sheet, 2, f"Cosine of two positions{note}", cosine, "position", "position", ends)
    return sheet.finish()


@position_picture.register
@torch.no_grad()
def _bias(position: nn.Alibi | nn.Relative) -> Figure:
    size = position.block_size
    added = position.bias(size, size)[:, -1].flip(-1)  # (H, P): the last query's, by distance
    sheet = new_sheet(2, f"{type(position).__name__}: each head's bias depends on the distance")
    curves(sheet, 0, "Added to the score of a key", array(added), DISTANCE, "bias")
    caption, weights = "Attention weights if all scores were equal", array(added.softmax(-1))
    curves(sheet, 1, caption, weights, DISTANCE, "attention weight")
    return sheet.finish()


@position_picture.register
def _head_bias(position: nn.HeadBias) -> Figure:
    return bias_map(position, position.block_size, causal=True)


@torch.no_grad()
def bias_map(position: nn.Position, tokens: int, *, causal: bool = False) -> Figure:
    """What `position` adds to the score of every pair of `tokens` positions, one map per head.

    Above the diagonal stand keys that come after the query, as attention with `causal=False` uses
    them; `causal` leaves those blank. Raises UserError when the encoding adds nothing to scores, or
    when `tokens` are more than its `block_size`.
    """
    bias = position.bias(tokens, tokens)  # (1 or H, T, T)
    name = type(position).__name__
    if bias is None:
        raise UserError(f"{name} adds no bias to scores: bias_map draws Alibi, Relative, HeadBias")
    title = f"{name}: added to the scores, keys before {'' if causal else 'and after '}the query"
    maps = of_heads(array(bias), "added to the score")
    return draw_maps(maps, list(map(str, range(tokens))), title, causal).finish()


@position_picture.register
@torch.no_grad()
def _rotary(position: nn.Rotary) -> Figure:
    size, width = position.block_size, position.head_dim
    sheet = new_sheet(3, "Rotary: the position rotates pairs of dimensions of queries and keys")
    cosine = array(position.cos).T  # (D / 2, P)
    ends = (-1.0, 1.0)
    image(sheet, 0, "Cosine of a pair's angle", cosine, "position", "pair of dimensions", ends)
    pairs = sorted({share * len(cosine) // 8 for share in range(4)})
    strips(sheet, 1, "The same for some pairs", {f"pair {pair}": cosine[pair] for pair in pairs})
    ones = torch.ones(1, 1, size, width, device=position.cos.device)
    q, k = position.rotate(ones[:, :, -1:], ones)
    score = array((q @ k.transpose(-2, -1))[0, 0].flip(-1) / width)  # (1, P): by distance
    caption = "q · R(distance) k / head_dim, where q and k are all ones"
    curves(sheet, 2, caption, score, DISTANCE, "score, 1 at distance 0")
    return sheet.finish()


def new_sheet(panels: int, title: str) -> Sheet:
    return Sheet(panels, 3, 300, 230, title)


def image(
    sheet: Sheet,
    number: int,
    caption: str,
    values: np.ndarray,
    across: str,
    down: str,
    ends: tuple[float, float] | None = None,
) -> None:
    """Draw values (down, across) in panel `number`; those below zero have diverging colours."""
    panel = sheet.panels[number]
    ticked(panel, across, down, whole="xy")
    norm = Normalize(*ends or limits(values, diverging=bool((values < 0).any())))
    sheet.bar(panel, heatmap(panel, values, norm))
    sheet.name(panel, caption)


def curves(
    sheet: Sheet, number: int, caption: str, values: np.ndarray, across: str, down: str
) -> None:
    """Draw a line for each head: a row of values (heads, places)."""
    panel = sheet.panels[number]
    for head, line in enumerate(values):
        panel.plot(line, label=f"head {head}", **line_style(head, len(line)))
    panel.set_xlim(-0.5, values.shape[1] - 0.5)  # as an image of them has
    ticked(panel, across, down)
    sheet.name(panel, caption)
    if len(values) > 1:
        size = min(SMALL, sheet.panel_size[1] / len(values) / 1.6)
        panel.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, fontsize=size)


def strips(sheet: Sheet, number: int, caption: str, lines: Mapping[str, np.ndarray]) -> None:
    """Draw lines one below the other, all on the scale of the table's colours."""
    panel, values = sheet.panels[number], np.stack(list(lines.values()))
    low, high = limits(values)
    shifts = 1.2 * (low - high) * np.arange(len(lines))
    style = "steps-mid" if (values == values.round()).all() else "default"
    panel.plot((values + shifts[:, None]).T, color=BLUE, drawstyle=style, linewidth=1.4)
    panel.set_xlim(-0.5, values.shape[1] - 0.5)
    ticked(panel, "position", "")
    panel.set_yticks(shifts + (low + high) / 2, list(lines))
    sheet.name(panel, caption)
