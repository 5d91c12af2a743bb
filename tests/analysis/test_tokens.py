"""Metrics that depend on the tokens of a text."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from headscope.analysis.tokens import classify_tokens, is_punctuation, mass_on, targets_in

TEXTS = ["the", " of", ",", "\n", "", " cat", "."]
THE, OF, COMMA, NEWLINE, END, CAT, STOP = range(7)
KINDS = classify_tokens(TEXTS, torch.tensor([20, 30, 20, 5, 5, 10, 10]))


def test_kinds_by_hand():
    assert KINDS.special.tolist() == [text == "" for text in TEXTS]
    assert KINDS.punctuation.tolist() == [text in {",", "\n", "."} for text in TEXTS]
    assert KINDS.frequent.nonzero().flatten().tolist() == [THE, OF]  # 20 + 30: half of 100
    assert classify_tokens(TEXTS).frequent is None
    assert all(map(is_punctuation, [".", " --", ".\n\n", "\u3002"]))
    assert not any(map(is_punctuation, ["'s", " ", "", "$", "\ufffd", "3."]))


@given(st.integers(1, 3), st.integers(1, 7), st.booleans(), st.integers(0, 99))
def test_metrics_are_those_of_a_plain_loop_and_read_nothing_after_a_token(
    texts, length, causal, seed
):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(len(TEXTS), (texts, length), generator=generator)
    weights = torch.rand(2, texts, 3, length, length, generator=generator)
    if causal:
        weights.masked_fill_(torch.ones(length, length).triu(1).bool(), math.nan)
    is_target = {
        "same_token": lambda words, query, key: key < query and words[key] == words[query],
        "punctuation": lambda words, query, key: words[key] in (COMMA, NEWLINE, STOP),
        "frequent": lambda words, query, key: words[key] in (THE, OF),
    }
    found = targets_in(tokens, KINDS)
    assert found.keys() == is_target.keys()
    for name, targets in found.items():
        mass, queries = mass_on(weights, targets, causal=causal)
        expected, count = torch.zeros(2, 3), 0
        for text, words in enumerate(tokens.tolist()):
            for t in range(length):
                seen = range(t + 1) if causal else range(length)
                keys = [s for s in seen if is_target[name](words, t, s)]
                if keys and (len(seen) > 1 or length == 1):
                    count += 1
                    expected += weights[:, text, :, t, keys].sum(-1)
        assert queries == count
        torch.testing.assert_close(mass, expected)
