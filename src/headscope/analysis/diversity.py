"""How much heads differ from one another: pure functions of their attention weights.

Shapes: N heads of all layers, T queries, S keys, and any leading axes.

Weights are (..., N, T, S), as in `headscope.analysis.metrics`. The weights on invisible keys are
ignored.
"""

import math

import torch
from torch import Tensor

from headscope.analysis.metrics import counted_queries, mean_over, visible_keys


def cosine_similarity(weights: Tensor, *, causal: bool = True) -> Tensor:
    """Cosine similarity of the attention maps of each pair of heads, (..., N, N), from 0 (they
    share no key) to 1 (the maps are proportional). Queries that see a single key are excluded:
    their weights are the same in every head."""
    visible = visible_keys(weights, causal=causal)
    compared = visible & counted_queries(visible)[:, None]
    maps = torch.where(compared, weights, 0.0).flatten(-2)
    maps = maps / maps.norm(dim=-1, keepdim=True).clamp(min=1e-12)
    return (maps @ maps.mT).clamp(0, 1)  # rounding gives 1.0000001


def jensen_shannon(weights: Tensor, *, causal: bool = True) -> Tensor:
    """Jensen-Shannon distance between each pair of heads, (..., N, N), from 0 (equal weights) to 1
    (they share no key): the square root of the divergence in bits, averaged over the queries (Lin
    1991; Endres 2003)."""
    visible = visible_keys(weights, causal=causal)
    maps = torch.where(visible, weights, 0.0)
    rows = [_distances(head, maps) for head in maps.unbind(dim=-3)]  # (..., N, T) each
    return mean_over(torch.stack(rows, dim=-3), counted_queries(visible))


def _distances(head: Tensor, heads: Tensor) -> Tensor:
    """Distance of `head` (..., T, S) to each of `heads` (..., N, T, S) per query, (..., N, T)."""
    head = head.unsqueeze(-3).expand_as(heads)
    middle = (head + heads) / 2
    divergence = (_divergence(head, middle) + _divergence(heads, middle)) / 2
    return divergence.clamp(min=0).sqrt()


def _divergence(first: Tensor, second: Tensor) -> Tensor:
    """Kullback-Leibler divergence of `first` from `second`, in bits (Kullback 1951). Where `second`
    is 0, `first` must be 0 too."""
    tiny = torch.finfo(first.dtype).tiny
    ratio = first.clamp(min=tiny) / second.clamp(min=tiny)
    return (first * ratio.log()).sum(dim=-1) / math.log(2)


def uniqueness(similarity: Tensor) -> Tensor:
    """1 minus the mean similarity of each head to all other heads, (..., N, N) to (..., N), from 0
    to 1. With a single head, it is 0."""
    heads = similarity.size(-1)
    if heads == 1:
        return torch.zeros_like(similarity[..., 0])
    others = similarity.sum(dim=-1) - similarity.diagonal(dim1=-2, dim2=-1)
    return 1 - others / (heads - 1)


def diversity(similarity: Tensor) -> Tensor:
    """1 minus the mean similarity of all pairs, (..., N, N) to (...), from 0 (all equal) to 1."""
    return uniqueness(similarity).mean(dim=-1)


def pairs_by_similarity(similarity: Tensor) -> list[tuple[int, int, float]]:
    """All pairs of heads with their similarity from `similarity` (N, N), the most similar first."""
    heads = similarity.size(-1)
    first, second = torch.triu_indices(heads, heads, offset=1)
    values = similarity[first, second]
    order = values.argsort(descending=True, stable=True)
    return [(int(first[i]), int(second[i]), float(values[i])) for i in order]
