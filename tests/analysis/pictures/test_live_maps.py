"""The laws of the attention picture: what a pixel means, what a label holds, what a draw keeps."""

import re
import subprocess
import sys
import warnings
from itertools import pairwise

import matplotlib
import numpy as np
import pytest
import torch
from drawn import assert_placed
from PIL import Image

from headscope.analysis.pictures.labels import picture_label
from headscope.analysis.pictures.live import Written
from headscope.analysis.pictures.live_maps import AttentionGrid

# What tokenizers really give: broken bytes, controls, mathtext, other scripts, marks on their own.
AWKWARD = [
    *("", " ", "\n", "\t\r", "\x00", "\x7f", "\ufffd", "\udc80", "$x_2$", "$", "_{^\\frac"),
    *("中文", "🦜", "مرحبا", "שלום", "e\u0301", "\u0301", "\u202eabc", "\u2800", "W" * 99),
]


def causal_weights(heads: int, tokens: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(heads, tokens, tokens, generator=generator)
    future = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    return scores.masked_fill(future, -torch.inf).softmax(-1)


def words(tokens: int) -> list[str]:
    return [f" word{index}" for index in range(tokens)]


def pixels(picture: Image.Image) -> np.ndarray:
    return np.asarray(picture.convert("RGB"))


def cell_colours(grid: AttentionGrid, picture: Image.Image, head: int, tokens: int) -> np.ndarray:
    """The colour of each (query, key) cell of one head's map, the same to the cell's very edge."""
    (left, top), side = grid.corners[head], grid.cell * tokens
    cells = pixels(picture)[top : top + side, left : left + side]
    cells = cells.reshape(tokens, grid.cell, tokens, grid.cell, 3)
    assert (cells == cells[:, :1, :, :1]).all()
    return cells[:, 0, :, 0]


def labels_of(grid: AttentionGrid, upright: bool) -> list[Written]:
    """The tokens' labels of the first head's queries, or of the last head's keys, in order."""
    (left, top), side = grid.corners[-1 if upright else 0], grid.cell * grid.tokens
    if upright:
        below = [text for text in grid.canvas.written if text.top == top + side + 4]
        return [text for text in below if left - 9 < text.left < left + side + 9]
    ends = [text for text in grid.canvas.written if left - 6 <= text.left + text.width <= left]
    return [text for text in ends if top - 9 < text.top < top + side]


@pytest.mark.parametrize(("heads", "tokens"), [(1, 1), (1, 8), (3, 5), (5, 12), (16, 2), (2, 90)])
def test_a_pixel_is_the_root_of_its_weight_and_the_future_is_white(heads, tokens):
    grid = AttentionGrid(words(tokens), heads)
    weights = causal_weights(heads, tokens)
    future = np.triu(np.ones((tokens, tokens), dtype=bool), k=1)
    image = grid.draw(weights + torch.from_numpy(future), "future filled with ones")
    for head in range(heads):
        colours = cell_colours(grid, image, head, tokens)
        expected = matplotlib.colormaps["viridis"](weights[head].sqrt().numpy(), bytes=True)
        assert (colours[future] == 255).all()
        past = colours[~future].astype(int)
        assert np.abs(past - expected[~future][:, :3]).max() <= 4  # a step of the colour scale


def test_the_colour_bar_says_what_colour_a_weight_has():
    grid = AttentionGrid(words(4), 1)
    picture = pixels(grid.draw(torch.eye(4)[None], "title"))
    ticks = {float(t.text): t for t in grid.canvas.written if re.fullmatch(r"[01](\.\d+)?", t.text)}
    assert sorted(ticks) == [0, 0.01, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1]
    for weight, text in ticks.items():
        beside = picture[text.top + text.height // 2, text.left - 8].astype(int)
        expected = matplotlib.colormaps["viridis"](weight**0.5, bytes=True)[:3]
        assert np.abs(beside - expected).max() <= 6, weight


@pytest.mark.parametrize("heads", [1, 4, 7])
def test_every_map_stands_below_its_head_s_name(heads):
    grid = AttentionGrid(words(5), heads)
    for head, (left, top) in enumerate(grid.corners):
        [name] = [text for text in grid.canvas.written if text.text == f"head {head}"]
        assert abs(name.left + name.width / 2 - left - 2.5 * grid.cell) <= 1
        assert top - 8 <= name.top + name.height <= top


def test_a_redraw_is_a_fresh_draw_pixel_for_pixel():
    labels, weights = words(9), causal_weights(4, 9)
    grid = AttentionGrid(labels, 4)
    grid.draw(causal_weights(4, 9, seed=1), "a longer title that must not shine through")
    redrawn = grid.draw(weights, "Layer 0, step 10")
    fresh = AttentionGrid(labels, 4).draw(weights, "Layer 0, step 10")
    assert np.array_equal(pixels(redrawn), pixels(fresh))


def test_images_already_given_out_do_not_change():
    grid = AttentionGrid(words(4), 1)
    image = grid.draw(causal_weights(1, 4), "first")
    before = image.copy()
    grid.draw(causal_weights(1, 4, seed=1), "second")
    assert np.array_equal(pixels(image), pixels(before))


def test_tensors_that_train_and_arrays_draw_alike():
    weights = causal_weights(2, 6).bfloat16().requires_grad_()
    grid = AttentionGrid(words(6), 2)
    image = grid.draw(weights, "bfloat16")
    again = grid.draw(weights.detach().double().numpy(), "bfloat16")
    assert np.array_equal(pixels(image), pixels(again))


@pytest.mark.parametrize(("heads", "tokens"), [(1, 32), (4, 32), (13, 32)])
def test_up_to_32_tokens_all_are_labelled_in_the_outer_maps(heads, tokens):
    grid = AttentionGrid(words(tokens), heads)
    expected = [picture_label(text) for text in words(tokens)]
    for upright in (False, True):
        assert [label.text for label in labels_of(grid, upright)] == expected


@pytest.mark.parametrize("tokens", [32, 33, 200])
@pytest.mark.parametrize("heads", [1, 4, 12])
def test_labels_never_touch(heads, tokens):
    grid = AttentionGrid(words(tokens), heads)
    # The highest part of a line's box is for accents, which no label has.
    queries, keys = labels_of(grid, upright=False), labels_of(grid, upright=True)
    assert min(b.top - a.top for a, b in pairwise(queries)) >= 0.7 * queries[0].height
    assert min(b.left - a.left for a, b in pairwise(keys)) >= 0.7 * keys[0].width


@pytest.mark.parametrize("labels", [AWKWARD, [""], ["W" * 99] * 200])
@pytest.mark.parametrize("heads", [1, 2, 13])
def test_all_that_is_written_lies_inside_the_picture_and_off_the_maps(labels, heads):
    grid = AttentionGrid(labels, heads)
    picture = grid.draw(causal_weights(heads, len(labels)), "title")
    side = grid.cell * len(labels)
    assert_placed(grid.canvas, picture, grid.corners, (side, side))


def test_awkward_labels_and_titles_draw_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        AttentionGrid(AWKWARD, 1).draw(causal_weights(1, len(AWKWARD)), "Layer 0, $step_{1")


@pytest.mark.parametrize("shape", [(4, 8, 9), (4, 9, 8), (3, 9, 9), (9, 9), (1, 4, 9, 9)])
def test_weights_of_another_shape_are_refused_with_both_shapes(shape):
    grid = AttentionGrid(words(9), 4)
    with pytest.raises(ValueError, match=r"4, 9, 9") as error:
        grid.draw(torch.zeros(shape), "wrong")
    assert str(shape) in str(error.value)


@pytest.mark.parametrize(("tokens", "heads"), [(0, 4), (4, 0)])
def test_nothing_to_draw_is_refused_with_both_numbers(tokens, heads):
    with pytest.raises(ValueError, match=rf"{tokens=} and {heads=}"):
        AttentionGrid(words(tokens), heads)


def test_redraws_add_nothing():
    grid, weights = AttentionGrid(words(6), 2), causal_weights(2, 6)
    written = list(grid.canvas.written)
    for step in range(5):
        grid.draw(weights, f"step {step}")
    assert grid.canvas.written == written


def test_pyplot_is_never_imported_and_latin_needs_no_search_for_fonts():
    program = (
        "import sys, torch\n"
        "from headscope.analysis.pictures import fonts\n"
        "from headscope.analysis.pictures.live_maps import AttentionGrid\n"
        "AttentionGrid(['·a', 'é⏎'], 1).draw(torch.eye(2)[None], 'title')\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
        "assert fonts.fallbacks.cache_info().currsize == 0\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
