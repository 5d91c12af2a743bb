"""Finds the position of the largest weight in an attention map.

Shapes: T queries, S keys, and any leading axes, such as layers and heads.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from headscope.analysis.metrics import counted_queries, visible_keys


class LargestWeight(NamedTuple):
    """The largest weight of each attention map, and the indices (int64) of its query and its key.
    The three tensors have shape (...)."""

    weight: Tensor
    query: Tensor
    key: Tensor


def find_largest_weight(weights: Tensor) -> LargestWeight:
    """Find the largest weight of each map in weights (..., T, S) of causal attention.

    The queries are the last T of the S positions. `query` is an index into these T queries, `key`
    an index into the S keys. Queries that see a single key are excluded, because the weight on that
    key is always 1. Such queries are included only if no query sees more than one key. If several
    weights are equally large, the first in row-major order is returned.
    """
    visible = visible_keys(weights)
    candidates = visible & counted_queries(visible)[:, None]
    flat = torch.where(candidates, weights, -1.0).flatten(-2)
    index = flat.argmax(dim=-1)
    keys = weights.size(-1)
    return LargestWeight(
        flat.gather(-1, index[..., None])[..., 0],
        torch.div(index, keys, rounding_mode="floor"),
        index % keys,
    )
