"""The laws of attention maps: what is drawn is what was given, and nothing of the future."""

import numpy as np
import pytest
import torch
from drawn import AWKWARD, assert_readable, assert_saved, data, images, words_of

from headscope.analysis.pictures import attention_maps, difference_map, mean_map
from headscope.analysis.pictures.fonts import picture_label
from headscope.analysis.pictures.maps import FEW


def causal_weights(heads: int, tokens: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(heads, tokens, tokens, generator=generator)
    return scores.masked_fill(torch.ones(tokens, tokens).triu(1) > 0, -torch.inf).softmax(-1)


def words(tokens: int) -> list[str]:
    return [f" word{index}" for index in range(tokens)]


def past(tokens: int) -> np.ndarray:
    return np.tril(np.ones((tokens, tokens), dtype=bool))


@pytest.mark.parametrize(("heads", "tokens"), [(1, 1), (4, 3), (3, 64), (8, 13)])
def test_every_head_is_drawn_as_given_and_the_future_is_blank(heads, tokens):
    weights = causal_weights(heads, tokens)
    figure = attention_maps(weights + ~torch.from_numpy(past(tokens)), words(tokens), title="maps")
    assert len(images(figure)) == heads
    for panel, head in zip(images(figure), weights.numpy(), strict=True):
        np.testing.assert_array_equal(data(panel), np.where(past(tokens), head, np.nan))


@pytest.mark.parametrize("tokens", [1, 6, 40])
def test_a_cell_is_a_square(tokens):
    figure = mean_map(causal_weights(2, tokens), words(tokens), title="mean")
    width, height = images(figure)[0].get_window_extent().size
    assert width == pytest.approx(height, rel=0.01)


def test_full_attention_has_a_future():
    weights = torch.rand(2, 5, 5)
    panels = images(attention_maps(weights, words(5), title="full", causal=False))
    np.testing.assert_array_equal([data(panel) for panel in panels], weights.numpy())


def test_the_mean_is_that_over_heads():
    weights = causal_weights(4, 6)
    [panel] = images(mean_map(weights, words(6), title="mean"))
    np.testing.assert_allclose(data(panel)[past(6)], weights.mean(0).numpy()[past(6)], rtol=1e-6)


def test_a_difference_is_symmetric_about_zero_and_says_which_is_which():
    first, second = causal_weights(2, 6)
    names = ("step 10 $x$", "step 200")
    figure = difference_map(first, second, words(6), title="difference", names=names)
    [panel] = images(figure)
    np.testing.assert_array_equal(data(panel)[past(6)], (first - second).numpy()[past(6)])
    low, high = panel.images[0].get_clim()
    assert high == -low == (first - second).abs().max()
    image = panel.images[0]
    red, blue = (image.cmap(image.norm(0.8 * value)) for value in (high, low))
    assert red[0] > 2 * red[2]
    assert blue[2] > 2 * blue[0]
    shown = words_of(figure)
    assert f"red: more weight in {names[0]}" in shown
    assert f"blue: more weight in {names[1]}" in shown


def test_no_difference_is_the_middle_of_the_scale():
    same = causal_weights(1, 3)[0]
    [panel] = images(difference_map(same, same, words(3), title="none", names=("a", "b")))
    assert panel.images[0].norm(0.0) == 0.5


@pytest.mark.parametrize("tokens", [FEW, FEW + 1])
def test_numbers_stand_in_the_cells_only_when_tokens_are_few(tokens):
    weights = causal_weights(2, tokens)
    for panel, head in zip(
        images(attention_maps(weights, words(tokens), title="numbers")), weights, strict=True
    ):
        written = {text.get_position(): float(text.get_text()) for text in panel.texts}
        cells = list(zip(*np.nonzero(past(tokens)), strict=True)) if tokens <= FEW else []
        assert set(written) == {(key, query) for query, key in cells}
        for query, key in cells:
            assert written[key, query] == pytest.approx(float(head[query, key]), abs=0.0051)


def test_marks_are_on_the_cells_they_name():
    [panel] = images(mean_map(causal_weights(2, 5), words(5), title="marks"))
    for behind, marks in enumerate(panel.lines):
        np.testing.assert_array_equal(marks.get_ydata() - marks.get_xdata(), behind)
        assert len(marks.get_ydata()) == 5 - behind
    assert len({(line.get_color(), line.get_marker()) for line in panel.lines}) == 2
    named = [text.get_text() for text in panel.get_legend().get_texts()]
    assert named == ["self", "previous token"]


@pytest.mark.parametrize(("tokens", "causal"), [(1, True), (12, False), (64, True)])
def test_nothing_is_cut_off_or_covered_whatever_the_tokens_are(tokens, causal):
    labels = (AWKWARD * 9)[-tokens:]
    weights = causal_weights(2, tokens)
    title = " ".join(AWKWARD) + " and a title that goes on" * 9
    figure = attention_maps(weights, labels, title=title, causal=causal)
    assert_readable(figure)
    assert_readable(mean_map(weights, labels, title=title))
    names = ("$" * 200, title)
    first, second = weights[:2]
    assert_readable(difference_map(first, second, labels, title="", names=names))


def test_a_text_that_no_font_can_draw_is_saved_in_both_formats():
    title, names = " ".join(AWKWARD), (" ".join(AWKWARD), "$")
    first, second = causal_weights(2, len(AWKWARD))
    assert_saved(difference_map(first, second, AWKWARD, title=title, names=names))


def test_up_to_64_tokens_of_4_heads_all_have_their_label():
    drawn = words_of(attention_maps(causal_weights(4, 64), words(64), title="labels"))
    assert all(drawn.count(picture_label(f" word{index}")) >= 4 for index in range(64))


def test_a_wrong_shape_is_said_with_the_way_out():
    for shape in ((0, 3, 3), (1, 3, 4), (1, 4, 4), (3, 3)):
        with pytest.raises(ValueError, match="as many tokens as there are labels"):
            attention_maps(torch.zeros(shape), words(3), title="wrong")
    with pytest.raises(ValueError, match="at least one"):
        mean_map(torch.zeros(0, 3, 3), words(3), title="none")
