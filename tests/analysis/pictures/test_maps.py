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

from headscope.analysis.pictures import attention_maps
from headscope.analysis.pictures.heads import FEW
from headscope.analysis.pictures.sheet import picture_label


def words(tokens):
    return [f" word{index}" for index in range(tokens)]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("heads", "tokens"), [(1, 1), (4, 3), (3, 64), (8, 13)])
def test_every_head_is_drawn_as_given_and_the_causal_future_is_blank(heads, tokens, causal):
    weights = torch.rand(heads, tokens, tokens)
    figure = attention_maps(weights, words(tokens), title="maps", causal=causal)
    assert_images(figure, np.where(past(tokens) | (not causal), weights, np.nan))


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


@pytest.mark.parametrize("labels", [[" Mary", ","] * 6, ["天地", "，"] * 6, AWKWARD[-12:]])
def test_a_short_text_has_upright_labels_and_the_shape_of_a_slide(labels):
    figure = attention_maps(causal_weights(4, 12), labels, title="Layer 0")
    ticks = [tick for panel in images(figure) for tick in panel.get_xticklabels()]
    assert {tick.get_rotation() for tick in ticks} == {0}
    assert ticks[-1].get_text().replace("\n", "") == picture_label(labels[-1])
    width, height = figure.get_size_inches()
    assert 4 / 3 <= width / height <= 2
    assert_readable(figure)


@pytest.mark.parametrize(("tokens", "causal"), [(1, True), (12, False), (64, True)])
def test_nothing_is_cut_off_or_covered_and_all_of_up_to_64_tokens_have_their_label(tokens, causal):
    title = TITLE + " and a title that goes on" * 9
    figure = attention_maps(
        causal_weights(2, tokens), (AWKWARD * 9)[-tokens:], title=title, causal=causal
    )
    assert_readable(figure)
    assert_saved(figure)
    drawn = words_of(attention_maps(causal_weights(4, 64), words(64), title="labels"))
    assert all(drawn.count(picture_label(word)) >= 4 for word in words(64))


def test_maps_that_do_not_fit_are_refused():
    for shape in ((0, 3, 3), (1, 3, 4), (1, 4, 4), (3, 3)):
        with refused("as many tokens as there are labels"):
            attention_maps(torch.zeros(shape), words(3), title="wrong")
