"""What one head does, in numbers: pure functions of its attention weights.

Shapes: T queries, S keys, and any axes before them, such as layers, texts and heads.

Every function takes weights (..., T, S) whose rows sum to one over the keys that a query may see,
and returns (...), the mean over the queries. The queries are the last T of the S positions. With
`causal`, the default, a query sees itself and all before it; otherwise all. What it cannot see is
not read. A query that sees one key alone has no choice and is left out, unless all are such.

All have gradients, and none is NaN or infinite, in value or in gradient.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from headscope.errors import UserError

LOCAL_WIDTH = 2


def visible_keys(weights: Tensor, *, causal: bool = True) -> Tensor:
    """The mask (T, S): True where a query may look."""
    return offsets(weights) <= 0 if causal else torch.ones_like(offsets(weights), dtype=torch.bool)


def offsets(weights: Tensor) -> Tensor:
    """How far after the query each key stands, (T, S): 0 on the diagonal, -1 for the one before."""
    queries, keys = weights.shape[-2:]
    if queries > keys:
        raise UserError(f"{queries} queries are more than {keys} keys: which stand where?")
    place = torch.arange(keys, device=weights.device)
    return place - place[keys - queries :, None]


def uniform(weights: Tensor, *, causal: bool = True) -> Tensor:
    """The weights (T, S) of a head that looks at all that it sees alike: what figures are compared
    with."""
    visible = visible_keys(weights, causal=causal).to(weights.dtype)
    return visible / visible.sum(dim=-1, keepdim=True)


def choosing(visible: Tensor) -> Tensor:
    """The queries (T,) that see more than one key; all where none does."""
    several = visible.sum(dim=-1) > 1
    return several | ~several.any()


def mean_over(values: Tensor, queries: Tensor) -> Tensor:
    """The mean of values (..., T) over those `queries` (T,) that count; 0 where none does."""
    count = queries.sum().clamp(min=1)
    return torch.where(queries, values, 0.0).sum(dim=-1) / count


def mass_where(weights: Tensor, where: Tensor, *, causal: bool) -> Tensor:
    """The weight on the keys of `where` (T, S), from 0 to 1."""
    visible = visible_keys(weights, causal=causal)
    mass = torch.where(where & visible, weights, 0.0).sum(dim=-1)
    return mean_over(mass, choosing(visible))


def neighbour_mass(weights: Tensor, offset: int, *, causal: bool) -> Tensor:
    """The weight on the key `offset` after a query, from 0 to 1, over the queries that have it."""
    visible = visible_keys(weights, causal=causal)
    where = visible & (offsets(weights) == offset)
    mass = torch.where(where, weights, 0.0).sum(dim=-1)
    return mean_over(mass, choosing(visible) & where.any(dim=-1))


def self_mass(weights: Tensor, *, causal: bool = True) -> Tensor:
    """The weight on the token itself, from 0 to 1: the diagonal."""
    return mass_where(weights, offsets(weights) == 0, causal=causal)


def previous_mass(weights: Tensor, *, causal: bool = True) -> Tensor:
    """The weight on the token before, from 0 to 1 (Voita 2019: positional heads)."""
    return neighbour_mass(weights, -1, causal=causal)


def next_mass(weights: Tensor, *, causal: bool = True) -> Tensor:
    """The weight on the token after, from 0 to 1; with `causal` it is 0."""
    return neighbour_mass(weights, 1, causal=causal)


def local_mass(weights: Tensor, *, width: int = LOCAL_WIDTH, causal: bool = True) -> Tensor:
    """The weight on tokens at most `width` away, the token itself included, from 0 to 1."""
    return mass_where(weights, offsets(weights).abs() <= width, causal=causal)


def first_mass(weights: Tensor, *, causal: bool = True) -> Tensor:
    """The weight on the first token, from 0 to 1: the "sink" (Xiao 2023)."""
    first = torch.zeros_like(offsets(weights), dtype=torch.bool)
    first[:, 0] = True
    return mass_where(weights, first, causal=causal)


def backward_mass(weights: Tensor, *, causal: bool = True) -> Tensor:
    """The weight on all tokens before, from 0 to 1."""
    return mass_where(weights, offsets(weights) < 0, causal=causal)


def forward_mass(weights: Tensor, *, causal: bool = True) -> Tensor:
    """The weight on all tokens after, from 0 to 1; with `causal` it is 0."""
    return mass_where(weights, offsets(weights) > 0, causal=causal)


def mean_distance(weights: Tensor, *, causal: bool = True) -> Tensor:
    """How far away a head looks, in tokens, from 0 to S - 1: the mean of |query - key| under its
    weights (Vig 2019)."""
    visible = visible_keys(weights, causal=causal)
    far = torch.where(visible, weights * offsets(weights).abs(), 0.0).sum(dim=-1)
    return mean_over(far, choosing(visible))


def global_strength(weights: Tensor, *, causal: bool = True) -> Tensor:
    """How evenly a head looks at all but the token itself, from 0 to 1.

    Of the m keys that a query sees, the m - 1 others would each get 1/m if it looked at all alike:
    sum over them of min(weight, 1/m), over (m - 1)/m. 1: each gets that or more; 0: the token
    itself gets all; a single other key that gets all: 1 / (m - 1).
    """
    visible = visible_keys(weights, causal=causal)
    keys = visible.sum(dim=-1, keepdim=True)  # m, (T, 1)
    others = visible & (offsets(weights) != 0)
    share = torch.where(others, torch.minimum(weights, 1 / keys), 0.0).sum(dim=-1)
    most = others.sum(dim=-1) / keys[:, 0]
    return mean_over(share / most.clamp(min=1e-9), choosing(visible) & (most > 0))


def single_key_mass(weights: Tensor, *, causal: bool = True) -> Tensor:
    """The mean weight that one key gets from the other queries that see it, from 0 to 1: of all
    keys but the first the one with the most (a "sink" that is not the first token, Xiao 2023).

    Only keys count that at least half of the queries see: the last ones are read by few. Not the
    mean over queries; 0 where no key qualifies.
    """
    others = visible_keys(weights, causal=causal) & (offsets(weights) != 0)
    readers = others.sum(dim=-2)  # of every key, (S,)
    qualifies = 2 * readers >= weights.size(-2)
    qualifies[0] = False
    received = torch.where(others, weights, 0.0).sum(dim=-2) / readers.clamp(min=1)
    return torch.where(qualifies, received, 0.0).amax(dim=-1)


def largest_weight(weights: Tensor, *, causal: bool = True) -> Tensor:
    """The largest weight of a query, from 1/S to 1."""
    visible = visible_keys(weights, causal=causal)
    return mean_over(torch.where(visible, weights, 0.0).amax(dim=-1), choosing(visible))


def entropy(weights: Tensor, *, causal: bool = True) -> Tensor:
    """- sum w ln w, in nats, from 0 (one key has all) to ln S (Shannon 1948)."""
    visible = visible_keys(weights, causal=causal)
    return mean_over(row_entropy(weights, visible), choosing(visible))


def entropy_share(weights: Tensor, *, causal: bool = True) -> Tensor:
    """Entropy over the most that is possible, the log of how many keys a query sees: from 0 (one
    key has all) to 1 (all have the same)."""
    visible = visible_keys(weights, causal=causal)
    most = visible.sum(dim=-1).clamp(min=2).log()  # of one key alone: 0 over ln 2
    return mean_over(row_entropy(weights, visible) / most, choosing(visible))


def effective_keys(weights: Tensor, *, causal: bool = True) -> Tensor:
    """How many keys a head would look at, each alike, for the same entropy: exp(entropy) of every
    query, from 1 to S (perplexity; Hill 1973)."""
    visible = visible_keys(weights, causal=causal)
    return mean_over(row_entropy(weights, visible).exp(), choosing(visible))


def unevenness(weights: Tensor, *, causal: bool = True) -> Tensor:
    """How far a head is from looking at all alike, from 0 to 1: the total variation distance,
    sum |weight - 1/m| / 2, of the m keys that a query sees."""
    visible = visible_keys(weights, causal=causal)
    apart = torch.where(visible, (weights - uniform(weights, causal=causal)).abs(), 0.0)
    return mean_over(apart.sum(dim=-1) / 2, choosing(visible))


def row_entropy(weights: Tensor, visible: Tensor) -> Tensor:
    """Entropy of every query, (..., T), in nats."""
    weights = torch.where(visible, weights, 0.0)
    tiny = torch.finfo(weights.dtype).tiny  # the slope of w ln w at 0 would be infinite
    return -(weights * weights.clamp(min=tiny).log()).sum(dim=-1)


Metric = Callable[..., Tensor]

BOTH_WAYS: Mapping[str, Metric] = {
    "next": next_mass,
    "backward": backward_mass,
    "forward": forward_mass,
}
"""Figures that tell something only where a token sees what comes after it."""

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
"""Figures of a head by name, for any attention."""


def head_figures(
    weights: Tensor, *, causal: bool = True, local_width: int = LOCAL_WIDTH
) -> dict[str, Tensor]:
    """All figures of weights (..., T, S) by name, (...) each."""
    metrics: dict[str, Metric] = {**METRICS, "local": partial(local_mass, width=local_width)}
    if not causal:
        metrics |= BOTH_WAYS
    return {name: metric(weights, causal=causal) for name, metric in metrics.items()}


def uniform_figures(tokens: int, *, causal: bool = True) -> dict[str, float]:
    """All figures by name of a head that looks at all it sees alike, in a text of so many tokens:
    the baseline that a head's figures are compared with."""
    even = uniform(torch.ones(tokens, tokens), causal=causal)
    return {name: float(value) for name, value in head_figures(even, causal=causal).items()}


def colour_ends(figure: str, tokens: int) -> tuple[float, float]:
    """The ends of a figure's colour scale, in every picture alike.

    0 to 1 for a share. Otherwise from the least possible value to about that of uniform attention
    over `tokens` tokens or, of distance, of a head that looks at the first token.
    """
    greatest = {
        "distance": tokens / 2,
        "entropy": math.log(max(tokens, 2)),
        "effective_keys": max((tokens + 2) / 2, 2),
    }
    return (1.0 if figure == "effective_keys" else 0.0), greatest.get(figure, 1.0)
