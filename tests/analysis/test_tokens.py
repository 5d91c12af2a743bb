"""Figures by the tokens of a text: known answers, and a plain reckoning."""

import math
from statistics import mean

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from headscope.analysis.metrics import uniform
from headscope.analysis.tokens import (
    classify_tokens,
    earlier_copies,
    is_punctuation,
    keys_of_kind,
    mass_on,
    most_frequent,
    targets_in,
)

TEXTS = ["the", " of", ",", "\n", "", " cat", "."]
THE, OF, COMMA, NEWLINE, END, CAT, STOP = range(7)
KINDS = classify_tokens(TEXTS, torch.tensor([30, 20, 10, 5, 5, 10, 10]))


def looking(*keys: int) -> Tensor:
    """A head (1, 1, T, T) whose query t looks at one key."""
    return torch.eye(len(keys))[list(keys)][None, None]


def figure(weights: Tensor, targets: Tensor, *, causal: bool = True) -> Tensor:
    mass, queries = mass_on(weights, targets, causal=causal)
    return mass / queries


def test_kinds_by_hand():
    assert KINDS.special.tolist() == [text == "" for text in TEXTS]
    assert KINDS.punctuation.tolist() == [text in {",", "\n", "."} for text in TEXTS]
    # 30 + 20 of 90 are more than half.
    assert KINDS.frequent.nonzero().flatten().tolist() == [THE, OF]
    assert classify_tokens(TEXTS).frequent is None


def test_punctuation_is_marks_and_line_breaks_alone():
    for text, expected in [
        *((".", True), (" --", True), (".\n\n", True), ("\u3002", True), ("\n", True)),
        *(
            ("'s", False),
            (" ", False),
            ("", False),
            ("$", False),
            ("\ufffd", False),
            ("3.", False),
        ),
    ]:
        assert is_punctuation(text) is expected


@given(st.lists(st.integers(0, 50), min_size=1, max_size=9))
def test_the_most_frequent_are_the_fewest_that_make_up_half(numbers):
    counts = torch.tensor(numbers)
    frequent = most_frequent(counts)
    if not counts.sum():
        return
    assert 2 * counts[frequent].sum() >= counts.sum()
    assert 2 * (counts[frequent].sum() - counts[frequent].min()) < counts.sum()
    assert not (~frequent).any() or counts[frequent].min() >= counts[~frequent].max()


def test_known_heads():
    tokens = torch.tensor([[THE, COMMA, CAT, THE, STOP, COMMA]])
    targets = targets_in(tokens, KINDS)
    copies = looking(0, 1, 2, 0, 4, 1)  # at the earlier copy, or at itself
    assert figure(copies, targets["same_token"]).item() == 1
    itself = looking(0, 1, 2, 3, 4, 5)
    assert figure(itself, targets["same_token"]).item() == 0
    marks = looking(0, 1, 1, 1, 4, 5)
    assert figure(marks, targets["punctuation"]).item() == 1
    assert figure(copies, targets["punctuation"]).item() == pytest.approx(3 / 5)
    words = looking(0, 0, 0, 3, 3, 3)
    assert figure(words, targets["punctuation"]).item() == 0
    assert figure(words, targets["frequent"]).item() == 1


def test_uniform_attention_gives_the_share_of_the_target():
    tokens = torch.tensor([[THE, COMMA, CAT, THE]])
    even = uniform(torch.ones(4, 4))[None, None]
    targets = targets_in(tokens, KINDS)
    assert figure(even, targets["punctuation"]).item() == pytest.approx(mean([1 / 2, 1 / 3, 1 / 4]))
    assert figure(even, targets["same_token"]).item() == pytest.approx(1 / 4)  # query 3 alone


@given(st.integers(1, 3), st.integers(1, 7), st.booleans(), st.integers(0, 99))
def test_they_are_those_reckoned_number_by_number(texts, length, causal, seed):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(len(TEXTS), (texts, length), generator=generator)
    scores = torch.randn(2, texts, 3, length, length, generator=generator)
    if causal:
        scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), -math.inf)
    weights = scores.double().softmax(-1)
    for name, targets in targets_in(tokens, KINDS).items():
        mass, queries = mass_on(weights, targets, causal=causal)
        expected, count = torch.zeros(2, 3, dtype=torch.double), 0
        for text, words in enumerate(tokens.tolist()):
            for t in range(length):
                seen = range(t + 1) if causal else range(length)
                keys = [
                    s
                    for s in seen
                    if {
                        "same_token": s < t and words[s] == words[t],
                        "punctuation": words[s] in (COMMA, NEWLINE, STOP),
                        "frequent": words[s] in (THE, OF),
                    }[name]
                ]
                if keys and (len(seen) > 1 or length == 1):
                    count += 1
                    expected += weights[:, text, :, t, keys].sum(-1)
        assert queries == count
        torch.testing.assert_close(mass, expected)


def test_what_comes_after_a_token_is_not_read():
    tokens = torch.tensor([[THE, COMMA, THE, CAT]])
    weights = uniform(torch.ones(4, 4))[None, None]
    spoilt = weights.masked_fill(torch.ones(4, 4).triu(1).bool(), math.nan)
    for targets in (earlier_copies(tokens), keys_of_kind(tokens, KINDS.frequent)):
        assert mass_on(spoilt, targets) == mass_on(weights, targets)
