"""The figures of a head: known answers for known patterns, at any size, and a plain reckoning."""

import math
from statistics import mean

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from headscope.analysis import metrics
from headscope.analysis.metrics import METRICS, NON_CAUSAL_METRICS, head_figures, uniform

sizes = st.integers(1, 12)
directions = st.booleans()


def pattern(name: str, tokens: int) -> Tensor:
    """Weights (T, T) of a head that looks at one key alone; the first token may only see itself."""
    looks = {"self": range(tokens), "previous": [0, *range(tokens - 1)], "first": [0] * tokens}
    return torch.eye(tokens)[list(looks[name])]


def some_weights(tokens: int, *, causal: bool, heads: int = 3, seed: int = 0) -> Tensor:
    scores = 3 * torch.randn(heads, tokens, tokens, generator=torch.Generator().manual_seed(seed))
    if causal:
        scores = scores.masked_fill(torch.ones(tokens, tokens).triu(1).bool(), -math.inf)
    return scores.double().softmax(-1)


def figures(weights: Tensor, *, causal: bool = True) -> dict[str, float]:
    return {name: value.item() for name, value in head_figures(weights, causal=causal).items()}


# --- known answers ---


@given(st.integers(2, 12))
def test_a_head_that_looks_at_all_alike(tokens):
    seen = range(2, tokens + 1)  # keys of the queries that have a choice
    assert figures(uniform(torch.ones(tokens, tokens))) == pytest.approx(
        {
            "self": mean(1 / n for n in seen),
            "previous": mean(1 / n for n in seen),
            "local": mean(min(n, 3) / n for n in seen),
            "first": mean(1 / n for n in seen),
            # Key 1, of queries 2 on: the keys after it get less.
            "single_key": mean(1 / n for n in range(3, tokens + 1)) if tokens > 3 else 0,
            "distance": tokens / 4,
            "global": 1,
            "largest": mean(1 / n for n in seen),
            "entropy": mean(math.log(n) for n in seen),
            "entropy_share": 1,
            "effective_keys": mean(seen),
            "unevenness": 0,
        },
        abs=1e-5,
    )


@given(st.integers(2, 12), st.sampled_from(["self", "previous", "first"]))
def test_a_head_that_looks_at_one_key(tokens, name):
    others = range(1, tokens)  # queries that have a choice
    expected = {
        "self": {"self": 1, "previous": 0, "first": 0, "local": 1, "distance": 0, "global": 0},
        "previous": {
            "self": 0,
            "previous": 1,
            "first": 1 / len(others),
            "local": 1,
            "distance": 1,
            "global": mean(1 / t for t in others),
        },
        "first": {
            "self": 0,
            "previous": 1 / len(others),
            "first": 1,
            "local": min(2, len(others)) / len(others),
            "distance": tokens / 2,
            "global": mean(1 / t for t in others),
        },
    }[name]
    # One of the half of the queries that the last key that counts is read by.
    single = 1 / math.ceil(tokens / 2) if name == "previous" and tokens > 3 else 0
    expected |= {
        "single_key": single,
        "largest": 1,
        "entropy": 0,
        "entropy_share": 0,
        "effective_keys": 1,
        "unevenness": mean(1 - 1 / (t + 1) for t in others),
    }
    assert figures(pattern(name, tokens)) == pytest.approx(expected, abs=1e-5)


def test_by_hand():
    weights = torch.tensor([[1.0, 0.0, 0.0], [0.25, 0.75, 0.0], [0.5, 0.3, 0.2]])
    found = figures(weights)
    assert found["self"] == pytest.approx((0.75 + 0.2) / 2)
    assert found["previous"] == pytest.approx((0.25 + 0.3) / 2)
    assert found["first"] == pytest.approx((0.25 + 0.5) / 2)
    assert found["distance"] == pytest.approx((0.25 + 1.3) / 2)
    assert found["largest"] == pytest.approx((0.75 + 0.5) / 2)
    # Query 1: 0.25 of at most 1/2. Query 2: 1/3 and 0.3 of at most 2/3.
    assert found["global"] == pytest.approx((0.25 / 0.5 + (1 / 3 + 0.3) / (2 / 3)) / 2)
    assert found["unevenness"] == pytest.approx((0.25 + 1 / 6) / 2)
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
        assert low <= value + 1e-6, name
        assert low < high, name
        assert value <= high + 1e-6, name


# --- any weights ---


def reckoned(weights: Tensor, *, causal: bool) -> dict[str, float]:
    """The same for one head (T, T), number by number."""
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
    names = [*METRICS, *([] if causal else NON_CAUSAL_METRICS)]
    found = {name: mean(rows.get(name, [0])) for name in names if name != "single_key"}
    return found | {"single_key": reckoned_single_key(weights, causal=causal)}


def reckoned_single_key(weights: Tensor, *, causal: bool) -> float:
    tokens, received = len(weights), [0.0]
    for key in range(1, tokens):
        readers = [t for t in range(tokens) if t != key and (t > key or not causal)]
        if 2 * len(readers) >= tokens:
            received.append(mean(weights[t, key].item() for t in readers))
    return max(received)


@given(sizes, directions, st.integers(0, 99))
def test_figures_are_those_reckoned_number_by_number(tokens, causal, seed):
    weights = some_weights(tokens, causal=causal, seed=seed)
    for head, head_weights in enumerate(weights):
        found = {
            name: each[head].item() for name, each in head_figures(weights, causal=causal).items()
        }
        assert found == pytest.approx(reckoned(head_weights, causal=causal), abs=1e-6)


@given(sizes, directions)
def test_axes_before_the_queries_are_kept(tokens, causal):
    weights = some_weights(tokens, causal=causal, heads=6)
    flat, folded = (
        head_figures(each, causal=causal) for each in (weights, weights.unflatten(0, (2, 1, 3)))
    )
    for name in flat:
        assert folded[name].shape == (2, 1, 3)
        assert torch.equal(folded[name].flatten(), flat[name])


@given(sizes, directions)
def test_figures_and_their_gradients_are_finite(tokens, causal):
    for weights in (
        some_weights(tokens, causal=causal),
        pattern("self", tokens),
        pattern("first", tokens),
    ):
        for name in head_figures(weights, causal=causal):
            given_weights = weights.clone().requires_grad_()
            figure = head_figures(given_weights, causal=causal)[name]
            figure.sum().backward()
            assert figure.isfinite().all(), name
            assert given_weights.grad.isfinite().all(), name


@given(st.integers(2, 12))
def test_what_comes_after_a_token_is_not_read(tokens):
    weights = some_weights(tokens, causal=True)
    spoilt = weights.masked_fill(torch.ones(tokens, tokens).triu(1).bool(), math.nan)
    assert figures(spoilt[0]) == figures(weights[0])


@given(st.integers(2, 12))
def test_fewer_queries_than_keys_are_the_last_ones(tokens):
    last = some_weights(tokens, causal=True)[:, -1:]
    torch.testing.assert_close(metrics.self_mass(last), last[:, 0, -1])
    torch.testing.assert_close(metrics.previous_mass(last), last[:, 0, -2])
    torch.testing.assert_close(metrics.first_mass(last), last[:, 0, 0])


def test_more_queries_than_keys_are_refused():
    with pytest.raises(ValueError, match=r"3 queries .* 2 keys"):
        metrics.self_mass(torch.ones(3, 2))
