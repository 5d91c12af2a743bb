"""The laws of the attention picture: what a pixel means, what a label holds, what a draw keeps."""

import gc
import io
import subprocess
import sys
import warnings
import weakref

import matplotlib
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.font_manager import get_font

from headscope.analysis.pictures.labels import FONT_FILE, LABEL_LENGTH, token_label
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


def cell_colours(grid: AttentionGrid, image: np.ndarray, head: int, tokens: int) -> np.ndarray:
    """The colour of each (query, key) cell of one head's map, the same to the cell's very edge."""
    box = grid.figure.axes[head].get_window_extent()
    top, left, side = round(image.shape[0] - box.y1), round(box.x0), round(box.width)
    pixels = image[top : top + side, left : left + side]
    cells = pixels.reshape(tokens, side // tokens, tokens, side // tokens, 3)
    assert (cells == cells[:, :1, :, :1]).all()
    return cells[:, 0, :, 0]


@pytest.mark.parametrize(("heads", "tokens"), [(1, 1), (1, 8), (3, 5), (5, 12), (16, 2), (2, 90)])
def test_a_pixel_is_the_root_of_its_weight_and_the_future_is_white(heads, tokens):
    grid = AttentionGrid(words(tokens), heads)
    weights = causal_weights(heads, tokens)
    future = np.triu(np.ones((tokens, tokens), dtype=bool), k=1)
    image = grid.draw(weights + torch.from_numpy(future), "future filled with ones")
    assert image.dtype == np.uint8
    for head in range(heads):
        colours = cell_colours(grid, image, head, tokens)
        expected = matplotlib.colormaps["viridis"](weights[head].sqrt().numpy(), bytes=True)
        assert (colours[future] == 255).all()
        past = colours[~future].astype(int)
        assert np.abs(past - expected[~future][:, :3]).max() <= 4  # one step of the colour map


def test_a_redraw_is_a_fresh_draw_pixel_for_pixel():
    labels, weights = words(9), causal_weights(4, 9)
    grid = AttentionGrid(labels, 4)
    grid.draw(causal_weights(4, 9, seed=1), "a longer title that must not shine through")
    redrawn = grid.draw(weights, "Layer 0, step 10")
    assert np.array_equal(redrawn, AttentionGrid(labels, 4).draw(weights, "Layer 0, step 10"))


def test_the_figure_shows_what_was_drawn_and_survives_being_shown():
    grid, weights = AttentionGrid(words(9), 4), causal_weights(4, 9)
    image = grid.draw(weights, "Layer 0, step 10")
    canvas = FigureCanvasAgg(grid.figure)  # as SummaryWriter.add_figure does
    canvas.draw()
    assert np.array_equal(np.asarray(canvas.buffer_rgba())[..., :3], image)
    grid.figure.savefig(io.BytesIO(), dpi=20)
    assert np.array_equal(grid.draw(weights, "Layer 0, step 10"), image)


def test_images_already_given_out_do_not_change():
    grid = AttentionGrid(words(4), 1)
    image = grid.draw(causal_weights(1, 4), "first")
    before = image.copy()
    grid.draw(causal_weights(1, 4, seed=1), "second")
    assert np.array_equal(image, before)


def test_tensors_that_train_and_arrays_draw_alike():
    weights = causal_weights(2, 6).bfloat16().requires_grad_()
    grid = AttentionGrid(words(6), 2)
    image = grid.draw(weights, "bfloat16")
    assert np.array_equal(image, grid.draw(weights.detach().double().numpy(), "bfloat16"))


@pytest.mark.parametrize(("heads", "tokens"), [(1, 32), (4, 32), (13, 32)])
def test_up_to_32_tokens_all_are_labelled_in_the_outer_panels(heads, tokens):
    panels = AttentionGrid(words(tokens), heads).figure.axes[:heads]
    expected = [token_label(text) for text in words(tokens)]
    assert [text.get_text() for text in panels[0].get_yticklabels()] == expected
    assert [text.get_text() for text in panels[-1].get_xticklabels()] == expected


@pytest.mark.parametrize("tokens", [32, 33, 200])
@pytest.mark.parametrize("heads", [1, 4, 12])
def test_labels_never_touch(heads, tokens):
    # A line of text is one font size high, and at 72 dots per inch that is in pixels.
    figure = AttentionGrid(words(tokens), heads).figure
    first, last = figure.axes[0], figure.axes[heads - 1]
    assert figure.dpi == 72
    for axis, size in [
        (first.yaxis, first.get_window_extent().height),
        (last.xaxis, last.get_window_extent().width),
    ]:
        pitch = np.diff(axis.get_ticklocs()) * size / tokens
        assert pitch.min() >= axis.get_ticklabels()[0].get_fontsize() - 1e-6


def test_every_label_lies_inside_the_picture_and_left_of_or_below_its_map():
    grid = AttentionGrid(AWKWARD, 2)
    renderer = FigureCanvasAgg(grid.figure).get_renderer()
    for panel in grid.figure.axes[:2]:
        box = panel.get_window_extent()
        for text in [*panel.get_yticklabels(), panel.yaxis.label]:
            extent = text.get_window_extent(renderer)
            assert extent.x0 >= 0
            assert extent.x1 <= box.x0
        for text in [*panel.get_xticklabels(), panel.xaxis.label]:
            extent = text.get_window_extent(renderer)
            assert extent.y0 >= 0
            assert extent.y1 <= box.y0


@given(st.text(st.characters(exclude_categories=[])) | st.sampled_from(AWKWARD))
def test_any_text_has_a_short_label_the_font_can_draw(text):
    label, font = token_label(text), get_font(FONT_FILE)
    assert 1 <= len(label) <= LABEL_LENGTH + 1
    assert label.isprintable()
    for character in label:
        assert font.get_char_index(ord(character)) != 0
        assert font.load_char(ord(character)).height > 0


@pytest.mark.parametrize(
    ("text", "label"),
    [
        (" the", "·the"),
        ("\n\n", "⏎⏎"),
        ("\t", "\\t"),
        ("", "∅"),
        ("$x_2$", "$x_2$"),
        ("naïve", "naïve"),
        ("中", "U+4E2D"),
        ("\ufffd", "U+FFFD"),
        ("\x00", "U+0000"),
        ("e\u0301", "eU+0301"),
        ("a" * LABEL_LENGTH, "a" * LABEL_LENGTH),
        (" proposition", "·propositi…"),
        ("中文", "U+4E2D…"),
    ],
)
def test_a_label_reads_as(text, label):
    assert token_label(text) == label


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


def test_redraws_add_nothing_and_a_grid_let_go_is_gone():
    grid, weights = AttentionGrid(words(6), 2), causal_weights(2, 6)
    grid.draw(weights, "first")
    artists = len(grid.figure.findobj())
    for step in range(5):
        grid.draw(weights, f"step {step}")
    assert len(grid.figure.findobj()) == artists
    figure = weakref.ref(grid.figure)
    del grid
    gc.collect()
    assert figure() is None


def test_pyplot_is_never_imported():
    program = (
        "import sys, torch\n"
        "from headscope.analysis.pictures.live_maps import AttentionGrid\n"
        "AttentionGrid(['a', 'b'], 1).draw(torch.eye(2)[None], 'title')\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
