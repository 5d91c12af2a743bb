"""How much heads differ from one another: pure functions of their attention weights.

Shapes: N heads, those of all layers side by side, T queries, S keys, and any axes before them.

Weights are (..., N, T, S), as in `headscope.analysis.metrics`; what a query cannot see is not read.
"""

import math

import torch
from torch import Tensor

from headscope.analysis.metrics import choosing, mean_over, visible_keys


def cosine_similarity(weights: Tensor, *, causal: bool = True) -> Tensor:
    """Cosine of the angle between the visible weights of every two heads, (..., N, N), from 0
    (they share no key) to 1 (they are alike). As in all figures, queries that see a single key are
    left out: there all heads are alike."""
    visible = visible_keys(weights, causal=causal)
    compared = visible & choosing(visible)[:, None]
    seen = torch.where(compared, weights, 0.0).flatten(-2)
    seen = seen / seen.norm(dim=-1, keepdim=True).clamp(min=1e-12)
    return (seen @ seen.mT).clamp(0, 1)  # rounding gives 1.0000001


def jensen_shannon(weights: Tensor, *, causal: bool = True) -> Tensor:
    """Jensen-Shannon distance between every two heads, (..., N, N), from 0 (alike) to 1 (they share
    no key): of every query the square root of the divergence in bits (Lin 1991; Endres 2003), and
    of these the mean."""
    visible = visible_keys(weights, causal=causal)
    seen = torch.where(visible, weights, 0.0)
    rows = [_distances(head, seen) for head in seen.unbind(dim=-3)]  # (..., N, T) each
    return mean_over(torch.stack(rows, dim=-3), choosing(visible))


def _distances(head: Tensor, heads: Tensor) -> Tensor:
    """From head (..., T, S) to each of heads (..., N, T, S), for every query: (..., N, T)."""
    head = head.unsqueeze(-3).expand_as(heads)
    middle = (head + heads) / 2
    divergence = (_divergence(head, middle) + _divergence(heads, middle)) / 2
    return divergence.clamp(min=0).sqrt()


def _divergence(first: Tensor, second: Tensor) -> Tensor:
    """Of the second from the first (Kullback 1951), in bits; the second is nowhere 0 alone."""
    tiny = torch.finfo(first.dtype).tiny
    ratio = first.clamp(min=tiny) / second.clamp(min=tiny)
    return (first * ratio.log()).sum(dim=-1) / math.log(2)


def uniqueness(similarity: Tensor) -> Tensor:
    """1 less the mean similarity of each head to the others, (..., N, N) to (..., N), from 0 to 1;
    of one head alone 0: there is nothing to differ from."""
    heads = similarity.size(-1)
    if heads == 1:
        return torch.zeros_like(similarity[..., 0])
    others = similarity.sum(dim=-1) - similarity.diagonal(dim1=-2, dim2=-1)
    return 1 - others / (heads - 1)


def diversity(similarity: Tensor) -> Tensor:
    """1 less the mean similarity of all pairs, (..., N, N) to (...), from 0 (all alike) to 1."""
    return uniqueness(similarity).mean(dim=-1)


def pairs_by_similarity(similarity: Tensor) -> list[tuple[int, int, float]]:
    """All pairs of heads of similarity (N, N) with their similarity, the most alike first."""
    heads = similarity.size(-1)
    first, second = torch.triu_indices(heads, heads, offset=1)
    values = similarity[first, second]
    order = values.argsort(descending=True, stable=True)
    return [(int(first[i]), int(second[i]), float(values[i])) for i in order]
