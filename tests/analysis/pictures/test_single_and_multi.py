"""The laws of the sheet that compares single-head and multi-head attention."""

import numpy as np
import pytest
import torch
from drawn import AWKWARD, assert_readable, assert_saved, data, images, words_of
from torch import Tensor

from headscope.analysis.pictures import single_and_multi_head
from headscope.errors import UserError

NAMES = ("run a, step 850, 1 head", "run $b$, step 900, many heads")


def causal_weights(heads: int, tokens: int, seed: int) -> Tensor:
    scores = torch.randn(heads, tokens, tokens, generator=torch.Generator().manual_seed(seed))
    return scores.masked_fill(torch.ones(tokens, tokens).triu(1) > 0, -torch.inf).softmax(-1)


def sheet(heads: int, labels: list[str]):
    single, multi = causal_weights(1, len(labels), 0)[0], causal_weights(heads, len(labels), 1)
    figure = single_and_multi_head(single, multi, labels, title="sheet", names=NAMES)
    return single, multi, figure


@pytest.mark.parametrize(("heads", "tokens"), [(1, 1), (2, 3), (4, 13), (7, 5)])
def test_the_single_head_the_mean_the_difference_and_every_head_are_drawn(heads, tokens):
    labels = [f" word{number}" for number in range(tokens)]
    single, multi, figure = sheet(heads, labels)
    mean = multi.mean(dim=0)
    past = np.tril(np.ones((tokens, tokens), dtype=bool))
    expected = [single, mean, single - mean, *multi]
    for panel, values in zip(images(figure), expected, strict=True):
        drawn = data(panel)
        np.testing.assert_allclose(drawn[past], values.numpy()[past], atol=1e-6)
        assert np.isnan(drawn[~past]).all()
    low, high = images(figure)[2].images[0].get_clim()
    assert low == -high
    words = words_of(figure)
    for name in (*NAMES, "single head", f"mean of {heads} heads", f"head {heads - 1}"):
        assert name in words


@pytest.mark.parametrize(("heads", "labels"), [(4, AWKWARD), (2, ["W" * 99] * 40), (12, ["a"])])
def test_all_can_be_read_and_saved(heads, labels):
    *_, figure = sheet(heads, labels)
    assert_readable(figure)
    assert_saved(figure)


@pytest.mark.parametrize(
    ("single", "multi", "labels"),
    [((3, 3), (4, 3, 3), 2), ((2, 3), (4, 3, 3), 3), ((3, 3), (3, 3), 3), ((3, 3), (0, 3, 3), 3)],
)
def test_maps_that_do_not_fit_are_refused(single, multi, labels):
    with pytest.raises(UserError):
        single_and_multi_head(
            torch.zeros(single), torch.zeros(multi), ["a"] * labels, title="", names=NAMES
        )
