"""How much heads differ: known answers, and what holds of any."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headscope.analysis.diversity import cosine_similarity, jensen_shannon
from headscope.analysis.metrics import uniform


def some_heads(heads, tokens, *, causal=True):
    """Weights (2, H, T, T). If causal, what comes after a token is NaN: it must not be read."""
    scores = 3 * torch.randn(2, heads, tokens, tokens, generator=torch.Generator().manual_seed(0))
    future = torch.ones(tokens, tokens).triu(1).bool() & torch.tensor(causal)
    weights = scores.masked_fill(future, -math.inf).double().softmax(-1)
    return weights.masked_fill(future, math.nan)


def test_by_hand():
    """One head looks at itself, one at the token before, one at all alike."""
    own, before = torch.eye(3), torch.eye(3)[[0, 0, 1]]
    heads = torch.stack([own, before, uniform(own)])
    # Of three rows the first, which sees one key, is the same in all and left out.
    similarity = cosine_similarity(heads)
    assert similarity[0, 1].item() == 0
    length = math.sqrt(1 / 2 + 1 / 3)
    assert similarity[0, 2].item() == pytest.approx((1 / 2 + 1 / 3) / length / math.sqrt(2))
    # Divergence in bits: the entropy of the middle, minus the mean of the two entropies.
    two = -(math.log2(3 / 4) * 3 / 4 + math.log2(1 / 4) / 4) - 1 / 2
    three = -(math.log2(2 / 3) * 2 / 3 + math.log2(1 / 6) / 3) - math.log2(3) / 2
    distance = jensen_shannon(heads)
    assert distance[0, 1].item() == pytest.approx(1)
    assert distance[0, 2].item() == pytest.approx((math.sqrt(two) + math.sqrt(three)) / 2)


@given(st.integers(1, 5), st.integers(1, 8), st.booleans())
def test_they_are_symmetric_and_bounded_and_a_head_is_like_itself(heads, tokens, causal):
    weights = some_heads(heads, tokens, causal=causal)
    visible = None if causal else torch.ones(tokens, tokens).bool()
    one = torch.ones(2, heads, dtype=torch.float64)
    for function, own in ((cosine_similarity, one), (jensen_shannon, 0 * one)):
        matrix = function(weights, visible)
        torch.testing.assert_close(matrix, matrix.mT)
        torch.testing.assert_close(matrix.diagonal(dim1=-2, dim2=-1), own)
        assert ((matrix >= 0) & (matrix <= 1 + 1e-9)).all()
    rounded = cosine_similarity(weights.float() / 3, visible)
    assert rounded.max() <= 1  # also after rounding
