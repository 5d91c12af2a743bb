"""Metrics of one head, as pure functions of its attention weights.

Shapes: T queries, S keys, and any leading axes, such as layers, texts and heads.

Weights have shape (..., T, S). Each row of weights sums to one over the visible keys. The queries
are the last T of the S positions. The mask `visible`, which broadcasts to the shape of the weights,
is True where the query sees the key. By default, a query sees its own token and all tokens before
it. The weights on keys that a query does not see are ignored.

Most metrics have a value for each query. Such a function returns the values (..., T), and the mask
(..., T) of the queries to average over. A query that sees a single key always gives it the weight
1. Such queries are excluded from the mean, unless there are no others. The weight on a set of keys
is the sum of the weights on these keys, from 0 to 1.

Most heads of a trained model put the weight that they do not need on the first token, an attention
sink (Xiao 2023): they rest there. So `head_metrics` measures what a head does in the other queries,
without this token (see `beyond_first`).

All metrics are differentiable. Their values and gradients are always finite.
"""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from headscope.errors import UserError

LOCAL_WIDTH = 2
FIXED_OFFSET = 3  # the smallest; nearer heads have the names self, previous-token and local
RESTS = 0.8
"""A query rests if it gives the first token more than this weight."""


def visible_keys(weights: Tensor, visible: Tensor | None = None) -> Tensor:
    """The mask `visible`, or by default the causal mask (T, S)."""
    return offsets(weights) <= 0 if visible is None else visible


def offsets(weights: Tensor) -> Tensor:
    """The position of each key minus that of each query, (T, S): 0 for the query's own token."""
    queries, keys = weights.shape[-2:]
    if queries > keys:
        problem = f"weights have {queries} queries and {keys} keys"
        raise UserError(f"{problem}: there must be a key for each query")
    positions = torch.arange(keys, device=weights.device)
    return positions - positions[keys - queries :, None]


def uniform(weights: Tensor, visible: Tensor | None = None) -> Tensor:
    """Uniform attention, in the shape of the mask: the same weight on every key that is seen."""
    visible = visible_keys(weights, visible).to(weights.dtype)
    return visible / visible.sum(dim=-1, keepdim=True).clamp(min=1)


def counted_queries(visible: Tensor) -> Tensor:
    """The mask (..., T) of the queries to average over: queries that see more than one key, or, if
    none does, those that see one."""
    several = visible.sum(dim=-1) > 1
    return several | (~several.any(dim=-1, keepdim=True) & visible.any(dim=-1))


def mean_over(values: Tensor, queries: Tensor) -> Tensor:
    """The mean of values (..., T) over the mask `queries` (..., T), or 0 if it has no query."""
    count = queries.sum(dim=-1).clamp(min=1)
    return torch.where(queries, values, 0.0).sum(dim=-1) / count


def first_keys(visible: Tensor) -> Tensor:
    """The mask, in the shape of `visible`, of the first token of the text, or of the document. It
    is the first key of the first query that sees it, so no later key of a window is."""
    first_key, first_query = (visible.cumsum(dim=axis) == 1 for axis in (-1, -2))
    return visible & (visible & first_key & first_query).any(dim=-2, keepdim=True)


def beyond_first(weights: Tensor, visible: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """What a head does without the first token: the weights on the other keys, divided by their
    sum, the mask of these keys, and the mask (..., T) of the queries that do not rest."""
    visible = visible_keys(weights, visible)
    weights, first = torch.where(visible, weights, 0.0), first_keys(visible)
    others = visible & ~first
    rest = torch.where(first, weights, 0.0).sum(dim=-1, keepdim=True)
    left = torch.where(others, weights / (1 - rest).clamp(min=1e-9), 0.0)
    return left, others, ~(rest[..., 0] > RESTS)  # NaN does not rest


# --- a value for each query ---


def mass_where(weights: Tensor, where: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:
    """Weight on the keys in the mask `where`, from 0 to 1."""
    mass = torch.where(where & visible, weights, 0.0).sum(dim=-1)
    return mass, counted_queries(visible)


def first_mass(weights: Tensor, visible: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Weight on the first token of the text or document, from 0 to 1, of the queries that see it.
    A high value means that this token is an attention sink (Xiao 2023)."""
    visible = visible_keys(weights, visible)
    where = first_keys(visible)
    mass, queries = mass_where(weights, where, visible)
    return mass, queries & where.any(dim=-1)


def self_mass(weights: Tensor, visible: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Weight on the query's own token (the diagonal of the attention map), from 0 to 1."""
    return mass_where(weights, offsets(weights) == 0, visible_keys(weights, visible))


def previous_mass(weights: Tensor, visible: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Weight on the token just before the query, from 0 to 1, of the queries that see this token
    (positional heads, Voita 2019)."""
    visible = visible_keys(weights, visible)
    where = visible & (offsets(weights) == -1)
    mass, queries = mass_where(weights, where, visible)
    return mass, queries & where.any(dim=-1)


def local_mass(weights: Tensor, visible: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Weight on the query's own token and on tokens at most LOCAL_WIDTH away, from 0 to 1."""
    near = offsets(weights).abs() <= LOCAL_WIDTH
    return mass_where(weights, near, visible_keys(weights, visible))


def mean_distance(weights: Tensor, visible: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Mean distance of query and key in tokens, weighted by attention, 0 to S - 1 (Vig 2019)."""
    visible = visible_keys(weights, visible)
    return mass_where(weights * offsets(weights).abs(), visible, visible)


def global_strength(weights: Tensor, visible: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Measures how many of the other tokens get attention, from 0 (none) to 1 (all).

    For a query that sees m keys, the value is the sum of min(weight, 1/m) over these keys except
    the query's own token, divided by the maximum of this sum, (m - 1)/m. The value is 1 if every
    other key gets a weight of at least 1/m. The value is 0 if the query's own token gets all the
    weight, and 1 / (m - 1) if one other key gets all the weight.
    """
    visible = visible_keys(weights, visible)
    keys = visible.sum(dim=-1, keepdim=True)  # m, (T, 1)
    others = visible & (offsets(weights) != 0)
    share = torch.where(others, torch.minimum(weights, 1 / keys), 0.0).sum(dim=-1)
    most = others.sum(dim=-1) / keys[..., 0].clamp(min=1)
    return share / most.clamp(min=1e-9), counted_queries(visible) & (most > 0)


def largest_weight(weights: Tensor, visible: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The largest weight of a query, from 1/S to 1."""
    visible = visible_keys(weights, visible)
    return torch.where(visible, weights, 0.0).amax(dim=-1), counted_queries(visible)


def entropy(weights: Tensor, visible: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Entropy of a query, -sum(w ln w), from 0 (a single key) to ln S nats (Shannon 1948)."""
    visible = visible_keys(weights, visible)
    weights = torch.where(visible, weights, 0.0)
    tiny = torch.finfo(weights.dtype).tiny  # keeps the gradient of w ln w finite at 0
    return -(weights * weights.clamp(min=tiny).log()).sum(dim=-1), counted_queries(visible)


def entropy_share(weights: Tensor, visible: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Entropy divided by its maximum, from 0 (one key gets all the weight) to 1 (uniform
    attention). The maximum is the logarithm of the number of keys that the query sees."""
    values, queries = entropy(weights, visible)
    keys = visible_keys(weights, visible).sum(dim=-1)
    return values / keys.clamp(min=2).log(), queries  # avoids log(1) = 0 for a single key


def effective_keys(weights: Tensor, visible: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The effective number of keys, exp(entropy), from 1 to S: uniform attention on this number of
    keys has the same entropy (perplexity; Hill 1973)."""
    values, queries = entropy(weights, visible)
    return values.exp(), queries


def unevenness(weights: Tensor, visible: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Total variation distance from uniform attention, from 0 (uniform) to 1. For a query that sees
    m keys, it is the sum of |weight - 1/m| / 2 over these keys."""
    visible = visible_keys(weights, visible)
    deviation = torch.where(visible, (weights - uniform(weights, visible)).abs(), 0.0)
    return deviation.sum(dim=-1) / 2, counted_queries(visible)


OF_QUERIES: Mapping[str, Callable[..., tuple[Tensor, Tensor]]] = {
    "self": self_mass,
    "previous": previous_mass,
    "local": local_mass,
    "distance": mean_distance,
    "global": global_strength,
    "largest": largest_weight,
    "entropy": entropy,
    "entropy_share": entropy_share,
    "effective_keys": effective_keys,
    "unevenness": unevenness,
}
"""The metrics that have a value for each query, but `first`."""

# --- a value for all queries: `active` is the mask (..., T) of the queries that do not rest ---


def single_key_mass(weights: Tensor, visible: Tensor, active: Tensor) -> Tensor:
    """Weight on the key that gets the most attention, from 0 to 1. A high value means that it is an
    attention sink (Xiao 2023).

    The weight on a key is averaged over the other queries that see this key. The result is the
    largest of these means. Keys that fewer than half of the queries see are excluded. The result is
    0 if no key remains.
    """
    others = visible & (offsets(weights) != 0)
    readers = active[..., None, :].to(weights.dtype)  # (..., 1, T)
    queries = (readers @ others.to(weights.dtype))[..., 0, :]  # that see each key, (..., S)
    received = (readers @ torch.where(others, weights, 0.0))[..., 0, :] / queries.clamp(min=1)
    every = (active & visible.any(dim=-1)).sum(dim=-1, keepdim=True)
    return torch.where(2 * queries >= every, received, 0.0).amax(dim=-1)


def offset_sums(weights: Tensor, visible: Tensor, active: Tensor) -> Tensor:
    """For each offset from 0 to S - 1, the weight on the key `offset` tokens before the query,
    summed over the queries that have it, and the number of these queries: (..., 2, S). Both are 0
    for offsets below FIXED_OFFSET."""
    queries, keys = weights.shape[-2:]
    nothing = torch.zeros_like(active[..., 0], dtype=weights.dtype)
    sums = [torch.stack([nothing, nothing], dim=-1)] * min(FIXED_OFFSET, keys)
    for offset in range(FIXED_OFFSET, keys):
        diagonal = keys - queries - offset
        seen = visible.diagonal(diagonal, dim1=-2, dim2=-1) & active[..., max(-diagonal, 0) :]
        given = torch.where(seen, weights.diagonal(diagonal, dim1=-2, dim2=-1), 0.0).sum(dim=-1)
        sums.append(torch.stack([given, seen.sum(dim=-1) + nothing], dim=-1))
    return torch.stack(sums, dim=-1)


def best_offset(sums: Tensor, queries: Tensor) -> dict[str, Tensor]:
    """The metric `fixed_offset`, and its `offset`, from `offset_sums` of texts with this number of
    queries, (...). Offsets that a quarter of the queries have, or fewer, are left out."""
    given, count = sums.unbind(dim=-2)
    mass = torch.where(4 * count > queries[..., None], given / count.clamp(min=1e-9), 0.0)
    mass, offset = mass.max(dim=-1)
    return {"fixed_offset": mass, "offset": offset.to(mass)}


METRICS = ("first", *OF_QUERIES, "single_key", "queries")
"""The metrics that need nothing but the weights. `head_metrics` adds those of `best_offset`."""


def head_metrics(weights: Tensor, visible: Tensor | None = None) -> dict[str, Tensor]:
    """All metrics of weights (..., T, S), by name. Each metric has the shape (...) of the leading
    axes. `visible` replaces the causal mask. All but `first` are those of `beyond_first`, over the
    queries that do not rest: `queries` is their number. They are 0 if all queries rest."""
    left, others, active = beyond_first(weights, visible)
    metrics = {"first": mean_over(*first_mass(weights, visible))}
    for name, metric in OF_QUERIES.items():
        values, queries = metric(left, others)
        metrics[name] = mean_over(values, queries & active)
    queries = (counted_queries(others) & active).sum(dim=-1)
    metrics |= {"single_key": single_key_mass(left, others, active), "queries": queries.to(left)}
    return metrics | best_offset(offset_sums(left, others, active), queries)


def colour_ends(metric: str, tokens: int) -> tuple[float, float]:
    """The limits of the colour scale of a metric of texts of `tokens` tokens, the same in every
    picture. Most scales go from 0 to 1. That of `distance` ends at the value of a head that attends
    only to the second token, that of `entropy` at its maximum, and that of `effective_keys` at the
    value of uniform attention."""
    last = {
        "distance": max((tokens - 1) / 2, 1),
        "offset": float(max(tokens, 2)),
        "entropy": math.log(max(tokens - 1, 2)),
        "effective_keys": max((tokens + 1) / 2, 2),
    }
    first = {"effective_keys": 1.0, "copying": -1.0}
    return first.get(metric, 0.0), last.get(metric, 1.0)
