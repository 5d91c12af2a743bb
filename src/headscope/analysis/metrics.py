"""Metrics of one head, as pure functions of its attention weights.

Shapes: T queries, S keys, and any leading axes, such as layers, texts and heads.

Every metric takes weights (..., T, S) and averages over the queries. The result has the shape (...)
of the leading axes. Each row of weights sums to one over the visible keys. The queries are the last
T of the S positions. With `causal=True`, the default, a query sees its own token and all tokens
before it. With `causal=False`, a query sees all tokens. The weights on keys that a query does not
see are ignored. A query that sees a single key always gives this key the weight 1. Such queries are
excluded from the mean, unless no query sees more than one key.

The weight on a set of keys is the sum of the weights on these keys, from 0 to 1.

All metrics are differentiable. Their values and gradients are always finite.
"""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from headscope.errors import UserError

LOCAL_WIDTH = 2


def visible_keys(weights: Tensor, *, causal: bool = True) -> Tensor:
    """The mask (T, S): True where the query sees the key."""
    return offsets(weights) <= 0 if causal else torch.ones_like(offsets(weights), dtype=torch.bool)


def offsets(weights: Tensor) -> Tensor:
    """The position of each key minus the position of each query, (T, S): 0 for the query's own
    token."""
    queries, keys = weights.shape[-2:]
    if queries > keys:
        raise UserError(
            f"weights have {queries} queries and {keys} keys: there must be a key for each query"
        )
    positions = torch.arange(keys, device=weights.device)
    return positions - positions[keys - queries :, None]


def uniform(weights: Tensor, *, causal: bool = True) -> Tensor:
    """The weights (T, S) of uniform attention: a query gives the same weight to every key that it
    sees."""
    visible = visible_keys(weights, causal=causal).to(weights.dtype)
    return visible / visible.sum(dim=-1, keepdim=True)


def counted_queries(visible: Tensor) -> Tensor:
    """The mask (T,) of the queries to average over: queries that see more than one key. If no query
    sees more than one key, all queries are included."""
    several = visible.sum(dim=-1) > 1
    return several | ~several.any()


def mean_over(values: Tensor, queries: Tensor) -> Tensor:
    """The mean of values (..., T) over the queries in the mask `queries` (T,). The mean is 0 if the
    mask contains no query."""
    count = queries.sum().clamp(min=1)
    return torch.where(queries, values, 0.0).sum(dim=-1) / count


def mass_where(weights: Tensor, where: Tensor, *, causal: bool) -> Tensor:
    """Weight on the keys in the mask `where` (T, S), from 0 to 1."""
    visible = visible_keys(weights, causal=causal)
    mass = torch.where(where & visible, weights, 0.0).sum(dim=-1)
    return mean_over(mass, counted_queries(visible))


def neighbour_mass(weights: Tensor, offset: int, *, causal: bool) -> Tensor:
    """Weight on the key `offset` tokens after the query, from 0 to 1. A negative `offset` is a key
    before the query. The mean is over the queries for which this key exists."""
    visible = visible_keys(weights, causal=causal)
    where = visible & (offsets(weights) == offset)
    mass = torch.where(where, weights, 0.0).sum(dim=-1)
    return mean_over(mass, counted_queries(visible) & where.any(dim=-1))


def self_mass(weights: Tensor, *, causal: bool = True) -> Tensor:
    """Weight on the query's own token (the diagonal of the attention map), from 0 to 1."""
    return mass_where(weights, offsets(weights) == 0, causal=causal)


def previous_mass(weights: Tensor, *, causal: bool = True) -> Tensor:
    """Weight on the token just before the query, from 0 to 1 (positional heads, Voita 2019)."""
    return neighbour_mass(weights, -1, causal=causal)


def next_mass(weights: Tensor, *, causal: bool = True) -> Tensor:
    """Weight on the token just after the query, from 0 to 1. The weight is 0 if `causal`."""
    return neighbour_mass(weights, 1, causal=causal)


def local_mass(weights: Tensor, *, width: int = LOCAL_WIDTH, causal: bool = True) -> Tensor:
    """Weight on the query's own token and on tokens at most `width` tokens away, from 0 to 1."""
    return mass_where(weights, offsets(weights).abs() <= width, causal=causal)


def first_mass(weights: Tensor, *, causal: bool = True) -> Tensor:
    """Weight on the first token, from 0 to 1. A high value means that the first token is an
    attention sink (Xiao 2023)."""
    first = torch.zeros_like(offsets(weights), dtype=torch.bool)
    first[:, 0] = True
    return mass_where(weights, first, causal=causal)


def backward_mass(weights: Tensor, *, causal: bool = True) -> Tensor:
    """Weight on all tokens before the query, from 0 to 1."""
    return mass_where(weights, offsets(weights) < 0, causal=causal)


def forward_mass(weights: Tensor, *, causal: bool = True) -> Tensor:
    """Weight on all tokens after the query, from 0 to 1. The weight is 0 if `causal`."""
    return mass_where(weights, offsets(weights) > 0, causal=causal)


def mean_distance(weights: Tensor, *, causal: bool = True) -> Tensor:
    """Mean distance between query and key in tokens, weighted by attention, from 0 to S - 1 (Vig
    2019)."""
    visible = visible_keys(weights, causal=causal)
    distance = torch.where(visible, weights * offsets(weights).abs(), 0.0).sum(dim=-1)
    return mean_over(distance, counted_queries(visible))


def global_strength(weights: Tensor, *, causal: bool = True) -> Tensor:
    """Measures how many of the other tokens get attention, from 0 (none) to 1 (all).

    For a query that sees m keys, the value is the sum of min(weight, 1/m) over these keys except
    the query's own token, divided by the maximum of this sum, (m - 1)/m. The value is 1 if every
    other key gets a weight of at least 1/m. The value is 0 if the query's own token gets all the
    weight, and 1 / (m - 1) if one other key gets all the weight.
    """
    visible = visible_keys(weights, causal=causal)
    keys = visible.sum(dim=-1, keepdim=True)  # m, (T, 1)
    others = visible & (offsets(weights) != 0)
    share = torch.where(others, torch.minimum(weights, 1 / keys), 0.0).sum(dim=-1)
    most = others.sum(dim=-1) / keys[:, 0]
    return mean_over(share / most.clamp(min=1e-9), counted_queries(visible) & (most > 0))


def single_key_mass(weights: Tensor, *, causal: bool = True) -> Tensor:
    """Weight on the key that gets the most attention, from 0 to 1. A high value means that a token
    other than the first is an attention sink (Xiao 2023).

    The weight on a key is averaged over the other queries that see this key. The result is the
    largest of these means. So this metric is not a mean over all queries, unlike the other metrics.
    The first key is excluded, and so are keys that fewer than half of the queries see. The result
    is 0 if no key remains.
    """
    others = visible_keys(weights, causal=causal) & (offsets(weights) != 0)
    queries = others.sum(dim=-2)  # number of queries that see each key, (S,)
    considered = 2 * queries >= weights.size(-2)
    considered[0] = False
    received = torch.where(others, weights, 0.0).sum(dim=-2) / queries.clamp(min=1)
    return torch.where(considered, received, 0.0).amax(dim=-1)


def largest_weight(weights: Tensor, *, causal: bool = True) -> Tensor:
    """The largest weight of a query, averaged over the queries, from 1/S to 1."""
    visible = visible_keys(weights, causal=causal)
    return mean_over(torch.where(visible, weights, 0.0).amax(dim=-1), counted_queries(visible))


def entropy(weights: Tensor, *, causal: bool = True) -> Tensor:
    """Entropy of a query's weights w, -sum(w ln w) in nats, from 0 (one key gets all the weight) to
    ln S (Shannon 1948)."""
    visible = visible_keys(weights, causal=causal)
    return mean_over(row_entropy(weights, visible), counted_queries(visible))


def entropy_share(weights: Tensor, *, causal: bool = True) -> Tensor:
    """Entropy divided by its maximum, from 0 (one key gets all the weight) to 1 (uniform
    attention). The maximum is the logarithm of the number of keys that the query sees."""
    visible = visible_keys(weights, causal=causal)
    maximum = visible.sum(dim=-1).clamp(min=2).log()  # avoids log(1) = 0 for a single key
    return mean_over(row_entropy(weights, visible) / maximum, counted_queries(visible))


def effective_keys(weights: Tensor, *, causal: bool = True) -> Tensor:
    """The effective number of keys, exp(entropy), from 1 to S: uniform attention on this number of
    keys has the same entropy (perplexity; Hill 1973)."""
    visible = visible_keys(weights, causal=causal)
    return mean_over(row_entropy(weights, visible).exp(), counted_queries(visible))


def unevenness(weights: Tensor, *, causal: bool = True) -> Tensor:
    """Total variation distance from uniform attention, from 0 (uniform) to 1. For a query that sees
    m keys, it is the sum of |weight - 1/m| / 2 over these keys."""
    visible = visible_keys(weights, causal=causal)
    deviation = torch.where(visible, (weights - uniform(weights, causal=causal)).abs(), 0.0)
    return mean_over(deviation.sum(dim=-1) / 2, counted_queries(visible))


def row_entropy(weights: Tensor, visible: Tensor) -> Tensor:
    """Entropy of the weights of each query in nats, (..., T)."""
    weights = torch.where(visible, weights, 0.0)
    tiny = torch.finfo(weights.dtype).tiny  # keeps the gradient of w ln w finite at 0
    return -(weights * weights.clamp(min=tiny).log()).sum(dim=-1)


Metric = Callable[..., Tensor]

NON_CAUSAL_METRICS: Mapping[str, Metric] = {
    "next": next_mass,
    "backward": backward_mass,
    "forward": forward_mass,
}
"""Metrics that make sense only without a causal mask, by name."""

METRICS: Mapping[str, Metric] = {
    "self": self_mass,
    "previous": previous_mass,
    "local": local_mass,
    "first": first_mass,
    "single_key": single_key_mass,
    "distance": mean_distance,
    "global": global_strength,
    "largest": largest_weight,
    "entropy": entropy,
    "entropy_share": entropy_share,
    "effective_keys": effective_keys,
    "unevenness": unevenness,
}
"""Metrics for attention with or without a causal mask, by name."""


def head_metrics(weights: Tensor, *, causal: bool = True) -> dict[str, Tensor]:
    """All metrics of weights (..., T, S), by name. Each metric has the shape (...) of the leading
    axes."""
    metrics = {**METRICS, **({} if causal else NON_CAUSAL_METRICS)}
    return {name: metric(weights, causal=causal) for name, metric in metrics.items()}


def uniform_metrics(tokens: int, *, causal: bool = True) -> dict[str, float]:
    """All metrics of uniform attention on a text of `tokens` tokens, by name. They are the baseline
    for the metrics of a head."""
    weights = uniform(torch.ones(tokens, tokens), causal=causal)
    return {name: float(value) for name, value in head_metrics(weights, causal=causal).items()}


def colour_ends(metric: str, tokens: int) -> tuple[float, float]:
    """The limits of the colour scale of the metric `metric`, which are the same in every picture.

    Most scales go from 0 to 1. The scales of `distance`, `entropy` and `effective_keys` begin at
    the smallest possible value. For texts of `tokens` tokens, the scale of `distance` ends at the
    value of a head that attends only to the first token. The scale of `entropy` ends at the maximum
    of the entropy. The scale of `effective_keys` ends at the value of uniform attention.
    """
    last = {
        "distance": tokens / 2,
        "entropy": math.log(max(tokens, 2)),
        "effective_keys": max((tokens + 2) / 2, 2),
    }
    return (1.0 if metric == "effective_keys" else 0.0), last.get(metric, 1.0)
