"""Metrics that depend on the tokens of a text."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from headscope.analysis.tokens import are_punctuation, classify_tokens, mass_on, targets_in

TEXTS = ["the", " of", ",", "\n", "", " cat", "."]
THE, OF, COMMA, NEWLINE, END, CAT, STOP = range(7)
PIECES = [text.encode() for text in TEXTS]
KINDS = classify_tokens(PIECES, torch.tensor([20, 30, 20, 5, 5, 10, 10]))


def test_kinds_by_hand():
    assert KINDS.special.tolist() == [text == "" for text in TEXTS]
    assert KINDS.punctuation.tolist() == [text in {",", "\n", "."} for text in TEXTS]
    assert KINDS.frequent.nonzero().flatten().tolist() == [THE, OF]  # 20 + 30: half of 100
    assert classify_tokens(PIECES).frequent is None
    assert all(are_punctuation([b".", b" --", b".\n\n", "\u3002".encode()]))
    assert not any(are_punctuation([b"'s", b" ", b"", b"$", "\ufffd".encode(), b"3."]))


def test_the_bytes_of_a_punctuation_mark_are_punctuation_wherever_tokens_end():
    """Also half of a mark, with a space before it. A mark that is cut off is none."""
    text = "\u4f60\u597d\uff0cmu. \u3002".encode()
    kinds = classify_tokens([bytes([value]) for value in range(256)])
    tokens = torch.tensor([list(text), list(text)])
    found = targets_in(tokens, kinds)["punctuation"]
    marks = [False] * 6 + [True] * 3 + [False] * 2 + [True, False] + [True] * 3
    assert found.tolist() == [[marks] * len(text)] * 2
    comma, stop = "\uff0c".encode(), "\u3002".encode()
    assert all(are_punctuation([comma[:1], comma[1:] + b" ", b" " + stop[:2], stop[2:]]))
    assert not any(are_punctuation([b"u" + comma[:1], comma[2:], b"a", stop[:2]]))


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
        mass, queries = mass_on(
            weights, targets, None if causal else torch.ones(length, length).bool()
        )
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
