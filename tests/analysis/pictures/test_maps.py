"""The laws of attention maps: what is drawn is what was given, and nothing of the future."""

import numpy as np
import pytest
import torch
from drawn import (
    AWKWARD,
    TITLE,
    assert_images,
    assert_readable,
    assert_saved,
    causal_weights,
    images,
    past,
    words_of,
)
from refusals import refused

from headscope.analysis.pictures import (
    attention_maps,
    difference_map,
    single_and_multi_head,
)
from headscope.analysis.pictures.fonts import picture_label
from headscope.analysis.pictures.maps import FEW


def words(tokens):
    return [f" word{index}" for index in range(tokens)]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("heads", "tokens"), [(1, 1), (4, 3), (3, 64), (8, 13)])
def test_every_head_is_drawn_as_given_in_squares_and_the_causal_future_is_blank(
    heads, tokens, causal
):
    weights = torch.rand(heads, tokens, tokens)
    figure = attention_maps(weights, words(tokens), title="maps", causal=causal)
    assert_images(figure, np.where(past(tokens) | (not causal), weights, np.nan))
    for panel in images(figure):
        width, height = panel.get_window_extent().size
        assert width == pytest.approx(height, rel=0.01)


def test_a_difference_is_symmetric_about_zero_and_says_which_is_which():
    first, second = causal_weights(2, 6)
    names = ("step 10 $x$", "step 200")
    figure = difference_map(first, second, words(6), title="difference", names=names)
    assert_images(figure, [np.where(past(6), first - second, np.nan)])
    image = images(figure)[0].images[0]
    low, high = image.get_clim()
    assert high == -low == (first - second).abs().max()
    red, blue = (image.cmap(image.norm(0.8 * value)) for value in (high, low))
    assert red[0] > 2 * red[2]
    assert blue[2] > 2 * blue[0]
    for colour, name in zip(("red", "blue"), names, strict=True):
        assert f"{colour}: more weight in {name}" in words_of(figure)
    [panel] = images(difference_map(first, first, words(6), title="none", names=names))
    assert panel.images[0].norm(0.0) == 0.5


@pytest.mark.parametrize(
    ("heads", "labels"),
    [(1, ["a"]), (4, AWKWARD), (2, ["W" * 99] * 40), (12, ["a"]), (7, words(5))],
)
def test_a_sheet_has_the_single_head_the_mean_the_difference_and_every_head(heads, labels):
    tokens, names = len(labels), ("run a, step 850, 1 head", "run $b$, step 900, many heads")
    [single], multi = causal_weights(1, tokens), causal_weights(heads, tokens, seed=1)
    figure = single_and_multi_head(single, multi, labels, title=TITLE, names=names)
    expected = torch.stack([single, multi.mean(0), single - multi.mean(0), *multi])
    assert_images(figure, np.where(past(tokens), expected, np.nan), atol=1e-6)
    low, high = images(figure)[2].images[0].get_clim()
    assert low == -high
    shown = words_of(figure)
    for name in (*names, "single head", f"mean of {heads} heads", f"head {heads - 1}"):
        assert name in shown
    assert_readable(figure)
    assert_saved(figure)


@pytest.mark.parametrize("tokens", [FEW, FEW + 1])
def test_numbers_stand_in_the_cells_only_when_tokens_are_few(tokens):
    weights = causal_weights(2, tokens)
    panels = images(attention_maps(weights, words(tokens), title="numbers"))
    for panel, head in zip(panels, weights, strict=True):
        written = {text.get_position(): float(text.get_text()) for text in panel.texts}
        cells = list(zip(*np.nonzero(past(tokens)), strict=True)) if tokens <= FEW else []
        assert written == {
            (key, query): pytest.approx(float(head[query, key]), abs=0.0051) for query, key in cells
        }


@pytest.mark.parametrize(("tokens", "causal"), [(1, True), (12, False), (64, True)])
def test_nothing_is_cut_off_or_covered_and_all_of_up_to_64_tokens_have_their_label(tokens, causal):
    labels = (AWKWARD * 9)[-tokens:]
    weights = causal_weights(2, tokens)
    title = TITLE + " and a title that goes on" * 9
    assert_readable(attention_maps(weights, labels, title=title, causal=causal))
    figure = difference_map(*weights, labels, title="", names=("$" * 200, title))
    assert_readable(figure)
    assert_saved(figure)
    drawn = words_of(attention_maps(causal_weights(4, 64), words(64), title="labels"))
    assert all(drawn.count(picture_label(word)) >= 4 for word in words(64))


def test_maps_that_do_not_fit_are_refused():
    for shape in ((0, 3, 3), (1, 3, 4), (1, 4, 4), (3, 3)):
        with refused("as many tokens as there are labels"):
            attention_maps(torch.zeros(shape), words(3), title="wrong")
    for single, multi in (((2, 3), (4, 3, 3)), ((3, 3), (3, 3)), ((3, 3), (0, 3, 3))):
        maps = torch.zeros(single), torch.zeros(multi)
        with refused("at least one head and the same tokens"):
            single_and_multi_head(*maps, words(3), title="", names=("a", "b"))
