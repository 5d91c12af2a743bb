"""The metrics of a head: known answers for known weights, and at any size those of a plain loop."""

import math
from itertools import product
from operator import mul
from statistics import mean

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused
from small_gpt import LENGTH, VOCAB, fresh, induction_circuit
from torch.special import entr
from viewer_data import uniform_metrics

from headscope.analysis import metrics
from headscope.analysis.diversity import cosine_similarity, jensen_shannon
from headscope.analysis.metrics import METRICS, head_metrics, uniform
from headscope.analysis.repeats import RepeatedTexts, RepeatProbe, contrast, repeated_texts, score
from headscope.analysis.tokens import (
    TokenKinds,
    are_punctuation,
    mass_on,
    most_frequent,
    targets_in,
)


def some_weights(tokens, *, causal, seed=0):
    """Weights (6, T, T): three patterns of one key, even weights, and two random heads. If causal,
    what comes after a token is NaN, because it must not be read."""
    future = torch.ones(tokens, tokens).triu(1).bool() & torch.tensor(causal)
    scores = 3 * torch.randn(2, tokens, tokens, generator=torch.Generator().manual_seed(seed))
    # Its own token, the token before and the first; then all alike.
    keys = [[max(0, t - back) for t in range(tokens)] for back in (0, 1, tokens)]
    patterns = [torch.eye(tokens)[key] for key in keys]
    patterns.append(uniform(torch.ones(tokens, tokens), ~future))
    weights = torch.stack([*patterns, *scores.masked_fill(future, -math.inf).softmax(-1)])
    return weights.double().masked_fill(future, math.nan)


@pytest.mark.parametrize("tokens", [2, 3, 64])
def test_colours_end_beyond_what_uniform_attention_gives(tokens):
    for name, [value] in uniform_metrics(tokens).items():
        low, high = metrics.colour_ends(name, tokens)
        assert low < high, name
        assert low - 1e-6 <= value <= high + 1e-6, name


def plain_loop(weights, *, causal):
    """The metrics of one head (T, T), number by number."""
    tokens, rows, left = len(weights), {}, {}
    for t, row in enumerate(weights.tolist()):
        seen = row[: t + 1] if causal else row
        if len(seen) > 1 or tokens == 1:
            rows.setdefault("first", []).append(row[0])
        if row[0] <= 0.8 and seen[1:]:
            left[t] = {s: seen[s] / (1 - row[0]) for s in range(1, len(seen))}
    several = 2 if tokens > 2 else 1
    counted = {t: row for t, row in left.items() if len(row) >= several}
    for t, row in counted.items():
        logs = -sum(weight * math.log(weight) for weight in row.values() if weight)
        even = 1 / len(row)
        others = [min(weight, even) for s, weight in row.items() if s != t]
        row_of = {
            "self": row.get(t, 0),
            "local": sum(weight for s, weight in row.items() if abs(s - t) <= 2),
            "distance": sum(weight * abs(s - t) for s, weight in row.items()),
            "largest": max(row.values()),
            "entropy": logs,
            "entropy_share": logs / math.log(max(len(row), 2)),
            "effective_keys": math.exp(logs),
            "unevenness": sum(abs(weight - even) for weight in row.values()) / 2,
        }
        if others:
            row_of["global"] = sum(others) / (len(others) * even)
        if t > 1:
            row_of["previous"] = row[t - 1]
        for name, value in row_of.items():
            rows.setdefault(name, []).append(value)
    received = [0.0]
    for key in range(1, tokens):
        given = [row[key] for t, row in left.items() if key in row and t != key]
        if given and 2 * len(given) >= len(left):
            received.append(mean(given))
    found = {name: mean(rows.get(name, [0])) for name in METRICS}
    found |= {"single_key": max(received), "queries": len(counted)}
    back = {
        offset: mean(given)
        for offset in range(3, tokens)
        if (given := [row[t - offset] for t, row in left.items() if t - offset in row])
        and 4 * len(given) > len(counted)
    }
    offset = max(back, key=lambda each: back[each], default=0)
    offset = offset if any(back.values()) else 0  # of zeros, the first
    return found | {"fixed_offset": back.get(offset, 0.0), "offset": offset}


@given(st.integers(1, 12), st.booleans(), st.integers(0, 99))
def test_they_are_those_of_a_plain_loop_on_any_axes_before_the_queries(tokens, causal, seed):
    """Their gradients are finite."""
    weights = some_weights(tokens, causal=causal, seed=seed).requires_grad_()
    visible = None if causal else torch.ones(tokens, tokens).bool()
    found = head_metrics(weights.unflatten(0, (3, 1, 2)), visible)
    assert {values.shape for values in found.values()} == {(3, 1, 2)}
    for head, head_weights in enumerate(weights):
        of_head = {name: values.flatten()[head].item() for name, values in found.items()}
        assert of_head == pytest.approx(plain_loop(head_weights, causal=causal), abs=1e-5)
    for name, values in found.items():
        if name in ("offset", "queries") or not values.requires_grad:  # numbers of tokens
            continue
        [gradient] = torch.autograd.grad(values.sum(), weights, retain_graph=True)
        assert gradient.isfinite().all(), name


def test_fewer_queries_than_keys_are_the_last_ones():
    last = some_weights(12, causal=True)[:, -1:]
    for metric, key in (("self", -1), ("previous", -2), ("first", 0)):
        values, queries = getattr(metrics, f"{metric}_mass")(last)
        torch.testing.assert_close(values[:, 0], last[:, 0, key])
        assert queries.all()
    with refused("3 queries", "2 keys"):
        metrics.self_mass(torch.ones(3, 2))


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.integers(0, 99))
def test_within_documents_they_are_the_means_over_the_queries_of_all_documents(lengths, seed):
    """A query sees its own document. `single_key` and the fixed offset are about the whole text."""
    alone = [some_weights(length, causal=True, seed=seed)[-1].nan_to_num() for length in lengths]
    weights = torch.block_diag(*alone)
    visible = torch.block_diag(*(torch.ones(each.shape) for each in alone)).tril().bool()
    several = 2 if max(lengths) > 2 else 1  # keys that a query sees, if any query does
    beyond = [sum(row[0] <= 0.8 and t >= several for t, row in enumerate(each)) for each in alone]
    of_first = [max(length - 1, max(lengths) == 1) for length in lengths]
    found = head_metrics(weights, visible)
    for name in {*METRICS} - {"single_key", "queries"}:
        counted = of_first if name == "first" else beyond
        of_each = [head_metrics(each)[name].item() for each in alone]
        expected = sum(map(mul, of_each, map(int, counted))) / max(int(sum(counted)), 1)
        assert found[name].item() == pytest.approx(expected, abs=1e-5), name


# --- how much heads differ ---


def rows_of(head, *, causal):
    """What each query sees of a head (T, T), without queries that see one key."""
    tokens = len(head)
    rows = [row[: t + 1] if causal else row for t, row in enumerate(head)]
    return [row for row in rows if len(row) > 1 or tokens == 1]


def bits_apart(one, other):
    """The Jensen-Shannon distance, by entropies."""
    shared = (entr(one) + entr(other)) / 2
    nats = (entr((one + other) / 2) - shared).sum().item()
    return math.sqrt(max(0.0, nats) / math.log(2))


@given(st.integers(1, 8), st.booleans())
def test_similarities_are_the_cosine_of_maps_and_the_mean_distance_in_bits(tokens, causal):
    weights = some_weights(tokens, causal=causal)
    visible = None if causal else torch.ones(tokens, tokens).bool()
    similarity, distance = (f(weights, visible) for f in (cosine_similarity, jensen_shannon))
    heads = [rows_of(head, causal=causal) for head in weights]
    for (i, one), (j, other) in product(enumerate(heads), repeat=2):
        cosine = torch.cosine_similarity(torch.cat(one), torch.cat(other), dim=0)
        torch.testing.assert_close(similarity[i, j], cosine)
        expected = mean(map(bits_apart, one, other))
        assert distance[i, j].item() == pytest.approx(expected, abs=1e-6)
    assert cosine_similarity(weights.float() / 3, visible).max() <= 1  # also after rounding
    of_each = torch.ones_like(weights).bool().tril(0 if causal else tokens)
    torch.testing.assert_close(jensen_shannon(weights, of_each), distance)


def test_a_head_that_sees_one_key_is_compared_where_the_other_head_has_a_choice():
    visible = torch.stack([torch.eye(4), torch.ones(4, 4)]).bool().tril()
    visible[0, 3, 2] = True  # a head with a single query that sees two keys
    maps = visible / visible.sum(dim=-1, keepdim=True)
    expected = mean(bits_apart(one, other) for one, other in zip(*maps[:, 1:], strict=True))
    of_pairs = torch.tensor([[0, expected], [expected, 0]])
    torch.testing.assert_close(jensen_shannon(maps, visible), of_pairs)


# --- metrics that depend on the tokens ---

TEXTS = ["the", " of", ",", "\n", "", " cat", "."]
THE, OF, COMMA, NEWLINE, END, CAT, STOP = range(7)
PIECES = [text.encode() for text in TEXTS]
KINDS = TokenKinds(PIECES, most_frequent(torch.tensor([20, 30, 20, 5, 5, 10, 10])))


def test_kinds_by_hand():
    assert are_punctuation(PIECES) == [text in {",", "\n", "."} for text in TEXTS]
    assert KINDS.frequent.nonzero().flatten().tolist() == [THE, OF]  # 20 + 30: half of 100
    assert all(are_punctuation([b".", b" --", b".\n\n", "\u3002".encode()]))
    assert not any(are_punctuation([b"'s", b" ", b"", b"$", "\ufffd".encode(), b"3."]))


def test_the_bytes_of_a_punctuation_mark_are_punctuation_wherever_tokens_end():
    """Also half of a mark, with a space before it. A mark that is cut off is none."""
    text = "\u4f60\u597d\uff0cmu. \u3002".encode()
    kinds = TokenKinds([bytes([value]) for value in range(256)])
    tokens = torch.tensor([list(text), list(text)])
    found = targets_in(tokens, kinds)["punctuation"]
    marks = [False] * 6 + [True] * 3 + [False] * 2 + [True, False] + [True] * 3
    assert found.tolist() == [[marks] * len(text)] * 2
    comma, stop = "\uff0c".encode(), "\u3002".encode()
    assert all(are_punctuation([comma[:1], comma[1:] + b" ", b" " + stop[:2], stop[2:]]))
    assert not any(are_punctuation([b"u" + comma[:1], comma[2:], b"a", stop[:2]]))


@given(st.integers(1, 3), st.integers(1, 7), st.booleans(), st.integers(0, 99))
def test_the_mass_on_targets_is_that_of_a_plain_loop(texts, length, causal, seed):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(len(TEXTS), (texts, length), generator=generator)
    weights = torch.rand(2, texts, 3, length, length, generator=generator)
    active = torch.rand(2, texts, 3, length, generator=generator) < 0.7
    is_target = {
        "same_token": lambda words, query, key: key < query and words[key] == words[query],
        "punctuation": lambda words, query, key: words[key] in (COMMA, NEWLINE, STOP),
        "frequent": lambda words, query, key: words[key] in (THE, OF),
    }
    found, visible = targets_in(tokens, KINDS), torch.ones(length, length).bool()
    visible = visible.tril() if causal else visible
    assert found.keys() == is_target.keys()
    for name, targets in found.items():
        mass, queries = mass_on(weights, targets, visible, active)
        expected, count = torch.zeros(2, 3), torch.zeros(2, 3).long()
        for text, words in enumerate(tokens.tolist()):
            for t in range(length):
                seen = range(t + 1) if causal else range(length)
                keys = [s for s in seen if is_target[name](words, t, s)]
                if keys and (len(seen) > 1 or length == 1):
                    count += active[:, text, :, t]
                    expected += weights[:, text, :, t, keys].sum(-1) * active[:, text, :, t]
        assert (queries == count).all()
        torch.testing.assert_close(mass, expected)


# --- induction ---


def texts_of(length=LENGTH, texts=8, seed=0, **options):
    return repeated_texts(vocab_size=VOCAB, length=length, texts=texts, seed=seed, **options)


def scores(weights, texts):
    """Induction and duplicate scores of one head's weights (B, T, T)."""
    contrasts = (contrast(texts, skip=1), contrast(texts, skip=0))
    return [float(score(weights[:, None], c)) / len(texts.tokens) for c in contrasts]


def test_a_circuit_built_by_hand_does_induction():
    metrics = RepeatProbe(induction_circuit(), texts=24).metrics(induction_circuit())
    # It looks everywhere where no token is repeated, so also at the places of other texts' targets.
    assert metrics["induction"][1].item() > 0.9
    assert abs(metrics["induction"][0].item()) < 0.01
    assert abs(metrics["duplicate"][1].item()) < 0.06
    assert metrics["repeat_previous"][0].item() == pytest.approx(1, abs=1e-3)


@given(st.integers(8, 40), st.integers(2, 12), st.integers(0, 99))
def test_what_depends_on_the_position_alone_scores_nothing(length, count, seed):
    """Heads that look a fixed number of tokens back, at each of the periods too, at the first
    token, at all alike, or by any pattern that is the same in every text."""
    texts = texts_of(length, count, seed)
    generator = torch.Generator().manual_seed(seed)
    patterns = [torch.eye(length)[[max(0, t - d) for t in range(length)]] for d in range(length)]
    patterns.append(uniform(torch.ones(length, length)))
    patterns.append(torch.rand(length, length, generator=generator).tril())
    for pattern in patterns:
        assert scores(pattern.expand(count, -1, -1), texts) == pytest.approx([0, 0], abs=1e-5)


def test_induction_by_hand():
    """Two texts, a b a b x x and a b c a b c: each is compared with the other at its own places."""
    tokens = torch.tensor([[0, 1, 0, 1, 8, 9], [0, 1, 2, 0, 1, 2]])
    texts = RepeatedTexts(tokens, periods=torch.tensor([2, 3]), starts=torch.tensor([2, 3]))
    weights = torch.zeros(2, 6, 6)
    weights[0, 2, 1], weights[0, 3, 2] = 0.6, 0.2  # what followed: mean 0.4
    weights[1, 3, 2] = 0.3  # the same place in the other text, where nothing repeats: mean 0.15
    weights[1, 4, 2] = 0.9  # what followed b: mean 0.3 over three queries
    weights[0, 2, 0] = 0.5  # its own token before: mean 0.25 over two queries
    assert scores(weights, texts) == pytest.approx([(0.4 - 0.15 + 0.3) / 2, 0.25 / 2])


@pytest.mark.parametrize(
    ("vocab_size", "expected"), [(60, {3, 5, 7, 9, 11}), (10, {3, 5, 7}), (7, {2, 4})]
)
def test_a_passage_comes_twice_and_nowhere_else(vocab_size, expected):
    """Of 24 tokens. No two periods differ by 1. A small vocabulary has short passages."""
    options = {"vocab_size": vocab_size, "excluded": [3, vocab_size - 1]}
    texts = repeated_texts(length=24, texts=16, seed=0, **options)
    periods, starts = texts.periods.tolist(), texts.starts.tolist()
    assert set(periods) == expected
    assert not {*options["excluded"]} & set(texts.tokens.flatten().tolist())
    for tokens, period, start in zip(texts.tokens.tolist(), periods, starts, strict=True):
        first, second = tokens[start - period : start], tokens[start : start + period]
        assert first == second
        assert len(set(first)) == period
        assert not set(first) & set(tokens[: start - period] + tokens[start + period :])


def test_what_has_no_two_periods_is_refused():
    for block_size, texts in ((7, 8), (10, 1)):
        with refused(f"block_size={block_size}, ", f"texts={texts}"):
            RepeatProbe(fresh(block_size=block_size), texts=texts)
    with refused("block_size=16", "4 tokens", "at least 5"):
        RepeatProbe(fresh(vocab_size=6, block_size=16), excluded=[0, 5])
