"""Induction: full for a circuit built by hand, none for what depends on the position alone."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from induction_circuit import LENGTH, VOCAB, induction_circuit
from refusals import refused
from small_gpt import fresh

from headscope.analysis.metrics import uniform
from headscope.analysis.repeats import (
    RepeatedTexts,
    RepeatProbe,
    contrast,
    repeated_texts,
    score,
)


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
    assert abs(metrics["duplicate"][1].item()) < 0.05
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


def test_by_hand():
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
    ("vocab_size", "expected"),
    [(60, {3, 5, 7, 9, 11}), (10, {3, 5, 7}), (7, {2, 4})],
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
