"""The largest weight of a map, and where it stands.

Shapes: T queries, S keys, and any axes before them, such as layers and heads.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from headscope.analysis.metrics import choosing, visible_keys


class LargestWeight(NamedTuple):
    """The largest weight of each map, with its query and key (int64), (...) each."""

    weight: Tensor
    query: Tensor
    key: Tensor


def largest_weight(weights: Tensor, *, causal: bool = True) -> LargestWeight:
    """Which query puts its largest weight on which key, in weights (..., T, S).

    Queries are the last T of the S positions; `query` counts from the first of the T, `key` from
    the first of the S. As in the figures of heads, a query that sees a single key is left out,
    unless all are such: its weight is always 1. Of equal weights the first is taken, row by row.
    """
    visible = visible_keys(weights, causal=causal)
    candidates = visible & choosing(visible)[:, None]
    ranked = torch.where(candidates, weights, -1.0).flatten(-2)
    place = ranked.argmax(dim=-1)
    keys = weights.size(-1)
    return LargestWeight(
        ranked.gather(-1, place[..., None])[..., 0],
        torch.div(place, keys, rounding_mode="floor"),
        place % keys,
    )
