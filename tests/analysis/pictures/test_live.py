"""The laws of pictures that are logged: what a pixel means, and that all of it can be read."""

import subprocess
import sys

import matplotlib
import numpy as np
import pytest
import torch
from drawn import AWKWARD
from PIL import Image

from headscope.analysis.pictures import attention_maps, similarity_matrix
from headscope.analysis.pictures.live import LivePicture

NAMES = [f"L{layer}H{head}" for layer in range(2) for head in range(3)]


def causal_weights(heads: int, tokens: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(heads, tokens, tokens, generator=generator)
    return scores.masked_fill(torch.ones(tokens, tokens).triu(1) > 0, -torch.inf).softmax(-1)


def live_maps(heads: int, tokens: int, seed: int = 1) -> LivePicture:
    labels = [f" word{index}" for index in range(tokens)]
    return LivePicture(attention_maps(causal_weights(heads, tokens, seed), labels, title="Layer"))


def pixels(picture: Image.Image) -> np.ndarray:
    return np.asarray(picture.convert("RGB")).astype(int)


def cells(live: LivePicture, picture: Image.Image, number: int, shape) -> np.ndarray:
    """The colour in the middle of each cell of a heatmap."""
    part = pixels(picture)[live.places()[number]]
    rows, columns = (
        ((np.arange(n) + 0.5) * size / n).astype(int)
        for n, size in zip(shape, part.shape, strict=False)
    )
    return part[rows[:, None], columns]


@pytest.mark.parametrize(("heads", "tokens"), [(1, 1), (3, 5), (12, 2), (2, 64)])
def test_a_colour_is_the_root_of_its_weight_and_the_future_is_white(heads, tokens):
    live, weights = live_maps(heads, tokens), causal_weights(heads, tokens)
    future = np.triu(np.ones((tokens, tokens), dtype=bool), k=1)
    picture = live.draw(list(weights + torch.from_numpy(future)), "future filled with ones")
    for head in range(heads):
        shown = cells(live, picture, head, (tokens, tokens))
        expected = matplotlib.colormaps["viridis"](weights[head].sqrt().numpy(), bytes=True)
        assert (shown[future] == 255).all()
        assert np.abs(shown - expected[..., :3])[~future].max() <= 4  # a step of the colour scale


def test_beyond_its_ends_a_scale_stays_and_what_is_unknown_is_white():
    live = LivePicture(similarity_matrix(torch.eye(6), NAMES, title="Step"))
    given = torch.full((6, 6), 0.5)
    given[0, :3] = torch.tensor([-3.0, 7.0, float("nan")])
    given[1, :2] = torch.tensor([0.0, 1.0])
    shown = cells(live, live.draw([given], "title"), 0, (6, 6))
    assert (shown[0, :2] == shown[1, :2]).all()
    assert (shown[0, 2] == 255).all()
    assert not (shown[1] == 255).all(axis=-1).any()


def test_a_redraw_is_a_fresh_draw_and_leaves_earlier_pictures_as_they_are():
    weights, live = causal_weights(4, 9), live_maps(4, 9)
    first = live.draw(list(causal_weights(4, 9, seed=2)), "a longer title that must not stay")
    before = pixels(first)
    redrawn = live.draw(list(weights), "Layer 0, step 10")
    fresh = live_maps(4, 9, seed=5).draw(list(weights), "Layer 0, step 10")
    assert np.array_equal(pixels(redrawn), pixels(fresh))
    assert np.array_equal(pixels(first), before)
    assert not np.array_equal(pixels(live.draw(list(weights), "Layer 0, step 11")), pixels(fresh))


def test_tensors_that_train_can_be_drawn():
    weights, live = causal_weights(2, 6).bfloat16().requires_grad_(), live_maps(2, 6)
    again = live.draw(list(weights.detach().double()), "x")
    assert np.array_equal(pixels(live.draw(list(weights), "x")), pixels(again))


@pytest.mark.parametrize("count", [1, 6, 64])
def test_similarities_can_be_logged(count):
    names = [f"L{number // 4}H{number % 4}" for number in range(count)]
    similarity = similarity_matrix(torch.eye(count), names, title="Step")
    LivePicture(similarity).draw([torch.eye(count)], "Step 1")


def test_awkward_labels_and_titles_can_be_logged():
    weights = causal_weights(1, len(AWKWARD))
    live = LivePicture(attention_maps(weights, AWKWARD, title="Layer"))
    live.draw(list(weights), "Layer 0, $step_{1")


@pytest.mark.parametrize("shape", [(4, 8, 9), (3, 9, 9), (4, 10, 10)])
def test_weights_of_another_shape_are_refused_with_both_shapes(shape):
    with pytest.raises(ValueError, match=r"\(9, 9\)"):
        live_maps(4, 9).draw(list(torch.zeros(shape)), "wrong")


def test_pyplot_is_never_imported_and_latin_needs_no_search_for_fonts():
    program = (
        "import sys, torch\n"
        "from headscope.analysis.pictures import attention_maps, fonts\n"
        "from headscope.analysis.pictures.live import LivePicture\n"
        "live = LivePicture(attention_maps(torch.eye(2)[None], ['·a', 'é⏎'], title='x'))\n"
        "live.draw([torch.eye(2)], 'title')\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
        "assert fonts.fallbacks.cache_info().currsize == 0\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_names_are_written_above_each_heatmap_and_long_text_is_cut():
    weights, live = list(causal_weights(2, 20)), live_maps(2, 20)
    first = live.draw(weights, "title", ["L0H0 self 0.50", "L0H1 first-token 0.90"])
    second = live.draw(weights, "title", ["L0H0 self 0.50", "L0H1 first-token 0.91"])
    rows, columns = np.nonzero((pixels(first) != pixels(second)).any(axis=-1))
    (top, left), (bottom, right) = (rows.min(), columns.min()), (rows.max(), columns.max())
    place = live.places()[1]
    assert place[0].start - 20 < top <= bottom < place[0].start
    assert place[1].start < left <= right < place[1].stop
    again = live.draw(weights, "title", ["L0H0 self 0.50", "L0H1 first-token 0.90"])
    assert np.array_equal(pixels(first), pixels(again))

    wide = pixels(live.draw(weights, "title " * 90, ["long " * 90] * 2))
    gap = slice(live.places()[0][1].stop, live.places()[1][1].start)
    assert (wide[place[0].start - 20 : place[0].start, gap] == 255).all()
    assert (wide[:, -4:] == 255).all()


def test_without_names_those_of_the_figure_stay():
    weights, live = list(causal_weights(2, 9)), live_maps(2, 9)
    own = live.draw(weights, "title")
    assert np.array_equal(pixels(own), pixels(live.draw(weights, "title", ["head 0", "head 1"])))
    assert not np.array_equal(pixels(own), pixels(live.draw(weights, "title", ["", ""])))
