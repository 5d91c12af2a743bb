"""Measures how much heads differ from one another, with pure functions of their attention weights.

Shapes: N heads of all layers, T queries, S keys, and any leading axes.

Weights have shape (..., N, T, S). As in `headscope.analysis.metrics`, `visible` is True where a
query sees a key, by default at its own and all earlier positions. Other weights are ignored.
"""

import math
from itertools import combinations

import torch
from torch import Tensor

from headscope.analysis.metrics import counted_queries, mean_over, visible_keys


def cosine_similarity(weights: Tensor, visible: Tensor | None = None) -> Tensor:
    """Cosine similarity of the attention maps of each pair of heads, (..., N, N): 0 if the two
    heads attend to different keys, 1 if their maps are equal. Queries that see a single key are
    excluded, because their weights are the same in every head."""
    visible = visible_keys(weights, visible)
    compared = visible & counted_queries(visible)[..., None]
    maps = torch.where(compared, weights, 0.0).flatten(-2)
    maps = maps / maps.norm(dim=-1, keepdim=True).clamp(min=1e-12)
    return (maps @ maps.mT).clamp(0, 1)  # rounding gives 1.0000001


def jensen_shannon(weights: Tensor, visible: Tensor | None = None) -> Tensor:
    """Jensen-Shannon distance between each pair of heads, (..., N, N), from 0 (equal weights) to 1
    (the heads attend to different keys). The distance is the square root of the Jensen-Shannon
    divergence in bits, averaged over the queries (Lin 1991; Endres 2003)."""
    visible = visible_keys(weights, visible)
    maps = torch.where(visible, weights, 0.0)
    terms = torch.special.entr(maps)  # of the entropies
    counted = counted_queries(visible).expand(maps.shape[:-1])
    heads = maps.size(-3)
    distances = maps.new_zeros(*maps.shape[:-3], heads, heads)
    for head in range(heads):
        # The entropy of the mean minus the mean of the entropies.
        middle = torch.special.entr((maps[..., head, None, :, :] + maps[..., head:, :, :]) / 2)
        means = (terms[..., head, None, :, :] + terms[..., head:, :, :]) / 2
        divergence = (middle - means).sum(dim=-1) / math.log(2)  # (..., N - head, T)
        queries = counted[..., head, None, :] | counted[..., head:, :]  # either head has a choice
        distances[..., head, head:] = mean_over(divergence.clamp(min=0).sqrt(), queries)
    return distances + distances.triu(1).mT


def uniqueness(similarity: Tensor) -> Tensor:
    """The uniqueness of each head, from 0 to 1: 1 minus its mean similarity to all other heads.
    `similarity` has shape (..., N, N), the result (..., N). A single head has uniqueness 0."""
    heads = similarity.size(-1)
    if heads == 1:
        return torch.zeros_like(similarity[..., 0])
    others = similarity.sum(dim=-1) - similarity.diagonal(dim1=-2, dim2=-1)
    return 1 - others / (heads - 1)


def diversity(similarity: Tensor) -> Tensor:
    """The diversity of the heads, from 0 (all heads are equal) to 1: 1 minus the mean similarity of
    all pairs. `similarity` has shape (..., N, N), the result (...)."""
    return uniqueness(similarity).mean(dim=-1)


def pairs_by_similarity(similarity: Tensor) -> list[tuple[int, int, float]]:
    """All pairs of heads with their values in `similarity` (N, N), the most similar pair first."""
    pairs = combinations(range(len(similarity)), 2)
    values = [(first, second, float(similarity[first, second])) for first, second in pairs]
    return sorted(values, key=lambda pair: -pair[2])
