"""Single-head and multi-head attention over the same text, on one sheet.

Shapes: H heads, T tokens, each a query (down) and a key (across).
"""

import math
from collections.abc import Sequence

from matplotlib.figure import Figure
from torch import Tensor

from headscope.analysis.pictures.maps import FEW, TokenMaps
from headscope.analysis.pictures.sheet import array, limits
from headscope.errors import UserError


def single_and_multi_head(
    single: Tensor,
    multi: Tensor,
    labels: Sequence[str],
    *,
    title: str,
    names: tuple[str, str],
    causal: bool = True,
) -> Figure:
    """One head's map (T, T) and those of many heads (H, T, T) over the same tokens.

    First row: the single head, the mean of the many, and the single head minus that mean, with zero
    in the middle of its colours. Below: each of the many. `names` say which models the two are of.
    Causal maps leave the future white. Up to FEW tokens have numbers written in the cells.

    Raises UserError when the shapes do not fit together, or `labels` are not T.
    """
    tokens, heads = len(labels), len(multi)
    if not tokens or single.shape != (tokens, tokens) or multi.shape != (heads, tokens, tokens):
        raise UserError(
            f"maps of shapes {tuple(single.shape)} and {tuple(multi.shape)} must be (tokens, "
            f"tokens) and (heads, tokens, tokens) for the {tokens} labels that were given"
        )
    if not heads:
        raise UserError("there are no heads to compare with: give at least one map")
    one, many = array(single), array(multi)
    mean = many.mean(axis=0)
    maps = [
        ("single head", one),
        (f"mean of {heads} heads", mean),
        ("single head - mean", one - mean),
        *((f"head {head}", weights) for head, weights in enumerate(many)),
    ]
    columns = max(3, min(4, heads))
    places = [(0, 0), (0, 1), (0, 2)] + [
        (1 + head // columns, head % columns) for head in range(heads)
    ]
    rows = 1 + math.ceil(heads / columns)
    room = max(220, min(1120 // columns, 44 * tokens if tokens <= FEW else 360))
    drawing = TokenMaps(labels, room, causal)
    notes = [("", f"single head: {names[0]}"), ("", f"heads: {names[1]}")]
    sheet = drawing.sheet(rows, columns, title, notes)
    for (name, values), (row, column) in zip(maps, places, strict=True):
        shown = drawing.visible(values)
        differ = name == "single head - mean"
        scale = limits(shown, diverging=True) if differ else None
        last = (row + 1, column) not in places
        image = drawing.panel(sheet, (row, column), shown, name, scale, last=last)
        if differ:
            drawing.bar(sheet, image, 0, columns, differ=True)
    drawing.bar(sheet, image, 1, columns, differ=False)
    return sheet.figure
