"""The metrics of a head: known answers for known weights, and at any size those of a plain loop."""

import math
from statistics import mean

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from headscope.analysis import metrics
from headscope.analysis.largest import find_largest_weight
from headscope.analysis.metrics import METRICS, NON_CAUSAL_METRICS, head_figures, uniform
from headscope.errors import UserError

sizes = st.integers(1, 12)
directions = st.booleans()


def pattern(name: str, tokens: int) -> Tensor:
    """Weights (T, T) of a head that looks at one key alone; the first token may only see itself."""
    looks = {"self": range(tokens), "previous": [0, *range(tokens - 1)], "first": [0] * tokens}
    return torch.eye(tokens)[list(looks[name])]


def some_weights(tokens: int, *, causal: bool, seed: int = 0) -> Tensor:
    """Weights (6, T, T): three patterns of one key, even weights, and two random heads. If causal,
    what comes after a token is NaN, because it must not be read."""
    future = torch.ones(tokens, tokens).triu(1).bool() & causal
    scores = 3 * torch.randn(2, tokens, tokens, generator=torch.Generator().manual_seed(seed))
    patterns = [pattern(name, tokens) for name in ("self", "previous", "first")]
    even = uniform(torch.ones(tokens, tokens), causal=causal)
    weights = torch.stack([*patterns, even, *scores.masked_fill(future, -math.inf).softmax(-1)])
    return weights.double().masked_fill(future, math.nan)


def test_by_hand():
    weights = torch.tensor([[1.0, 0.0, 0.0], [0.25, 0.75, 0.0], [0.5, 0.3, 0.2]])
    entropies = [-sum(x * math.log(x) for x in row) for row in ((0.25, 0.75), (0.5, 0.3, 0.2))]
    expected = {
        "self": (0.75 + 0.2) / 2,
        "previous": (0.25 + 0.3) / 2,
        "first": (0.25 + 0.5) / 2,
        "local": 1,
        "single_key": 0,  # only one query comes after key 1
        "distance": (0.25 + 1.3) / 2,
        # Query 1: 0.25 of at most 1/2. Query 2: 1/3 and 0.3 of at most 2/3.
        "global": (0.25 / 0.5 + (1 / 3 + 0.3) / (2 / 3)) / 2,
        "largest": (0.75 + 0.5) / 2,
        "entropy": mean(entropies),
        "entropy_share": (entropies[0] / math.log(2) + entropies[1] / math.log(3)) / 2,
        "effective_keys": mean(map(math.exp, entropies)),
        "unevenness": (0.25 + 1 / 6) / 2,
    }
    found = {name: value.item() for name, value in head_figures(weights).items()}
    assert found == pytest.approx(expected, abs=1e-6)
    assert metrics.local_mass(weights, width=1).item() == pytest.approx((1 + 0.5) / 2)


@given(st.integers(4, 12), st.integers(1, 11), directions)
def test_a_sink_that_is_not_the_first_token_is_a_single_key(tokens, key, causal):
    """All queries that see the key look at it; those before it look at themselves."""
    key = min(key, tokens // 2 - 1)
    looks = [key if t > key or not causal else t for t in range(tokens)]
    weights = torch.eye(tokens)[looks]
    assert metrics.single_key_mass(weights, causal=causal).item() == 1
    assert metrics.single_key_mass(pattern("first", tokens), causal=causal).item() == 0


@pytest.mark.parametrize("tokens", [1, 2, 64])
def test_colours_end_beyond_what_uniform_attention_gives(tokens):
    for name, value in metrics.uniform_figures(tokens).items():
        low, high = metrics.colour_ends(name, tokens)
        assert low < high, name
        assert low - 1e-6 <= value <= high + 1e-6, name


def plain_loop(weights: Tensor, *, causal: bool) -> dict[str, float]:
    """The metrics of one head (T, T), number by number."""
    tokens = len(weights)
    rows: dict[str, list[float]] = {}
    for t, row in enumerate(weights.tolist()):
        seen = row[: t + 1] if causal else row
        if len(seen) == 1 and tokens > 1:
            continue
        logs = -sum(weight * math.log(weight) for weight in seen if weight)
        others = [min(weight, 1 / len(seen)) for s, weight in enumerate(seen) if s != t]
        row_of = {
            "self": row[t],
            "local": sum(weight for s, weight in enumerate(seen) if abs(s - t) <= 2),
            "first": row[0],
            "distance": sum(weight * abs(s - t) for s, weight in enumerate(seen)),
            "largest": max(seen),
            "entropy": logs,
            "entropy_share": logs / math.log(max(len(seen), 2)),
            "effective_keys": math.exp(logs),
            "unevenness": sum(abs(weight - 1 / len(seen)) for weight in seen) / 2,
        }
        if others:
            row_of["global"] = sum(others) / (1 - 1 / len(seen))
        if t > 0:
            row_of["previous"] = row[t - 1]
        if not causal:
            row_of |= {"backward": sum(row[:t]), "forward": sum(row[t + 1 :])}
            if t < tokens - 1:
                row_of["next"] = row[t + 1]
        for name, value in row_of.items():
            rows.setdefault(name, []).append(value)
    received = [0.0]
    for key in range(1, tokens):
        readers = [t for t in range(tokens) if t != key and (t > key or not causal)]
        if 2 * len(readers) >= tokens:
            received.append(mean(weights[t, key].item() for t in readers))
    names = [*METRICS, *([] if causal else NON_CAUSAL_METRICS)]
    return {name: mean(rows.get(name, [0])) for name in names} | {"single_key": max(received)}


@given(sizes, directions, st.integers(0, 99))
def test_they_are_those_of_a_plain_loop_on_any_axes_before_the_queries(tokens, causal, seed):
    weights = some_weights(tokens, causal=causal, seed=seed)
    found = head_figures(weights.unflatten(0, (3, 1, 2)), causal=causal)
    assert {values.shape for values in found.values()} == {(3, 1, 2)}
    for head, head_weights in enumerate(weights):
        of_head = {name: values.flatten()[head].item() for name, values in found.items()}
        assert of_head == pytest.approx(plain_loop(head_weights, causal=causal), abs=1e-5)


@given(sizes, directions)
def test_metrics_and_their_gradients_are_finite(tokens, causal):
    weights = some_weights(tokens, causal=causal)
    for name in head_figures(weights, causal=causal):
        given_weights = weights.clone().requires_grad_()
        metric = head_figures(given_weights, causal=causal)[name]
        metric.sum().backward()
        assert metric.isfinite().all(), name
        assert given_weights.grad.isfinite().all(), name


@given(st.integers(2, 12))
def test_fewer_queries_than_keys_are_the_last_ones(tokens):
    last = some_weights(tokens, causal=True)[:, -1:]
    torch.testing.assert_close(metrics.self_mass(last), last[:, 0, -1])
    torch.testing.assert_close(metrics.previous_mass(last), last[:, 0, -2])
    torch.testing.assert_close(metrics.first_mass(last), last[:, 0, 0])
    with pytest.raises(UserError, match=r"3 queries .* 2 keys"):
        metrics.self_mass(torch.ones(3, 2))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("queries", "keys"), [(9, 9), (4, 9), (1, 9), (1, 1)])
def test_no_visible_weight_is_larger_than_the_largest_and_it_stands_where_it_says(
    causal, queries, keys
):
    weights = torch.rand(2, 3, queries, keys, generator=torch.Generator().manual_seed(0))
    visible = torch.ones(queries, keys, dtype=torch.bool)
    if causal:
        visible = visible.tril(keys - queries)
        visible[0] &= queries < keys or keys == 1  # else it sees itself alone
    largest = find_largest_weight(weights, causal=causal)
    for place in [(layer, head) for layer in range(2) for head in range(3)]:
        weight, query, key = (part[place] for part in largest)
        assert weight == weights[place][visible].max()
        assert weights[place][query, key] == weight
        assert visible[query, key]
