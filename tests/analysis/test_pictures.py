"""The laws of the pictures of heads: every number where it belongs, on a scale that is fair."""

import math

import matplotlib
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from choices import SIZES, position_of
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from refusals import refused

from headscope.analysis.head_images import GAP, HEAD_PIXELS, head_image
from headscope.analysis.pictures import (
    FEW,
    attention_maps,
    bias_map,
    changes_of_heads,
    heatmaps_of,
    history,
    parts_of_heads,
    patching_of_heads,
    position_picture,
    similarity_matrix,
)
from headscope.analysis.sheet import COLOURS
from headscope.nn import Position

pytestmark = pytest.mark.usefixtures("pictures_not_drawn")


def values_of(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def causal_weights(heads, tokens):
    scores = values_of(heads, tokens, tokens)
    return scores.masked_fill(torch.ones(tokens, tokens).triu(1) > 0, -torch.inf).softmax(-1)


def images(figure: Figure) -> list[Axes]:
    """The panels with an image, without the colour bars."""
    return [panel for panel in figure.axes if panel.images]


def assert_images(figure: Figure, expected, **tolerance: float) -> None:
    """The panels show these values, and no others. NaN stands where nothing is shown."""
    for panel, values in zip(images(figure), expected, strict=True):
        shown = np.ma.filled(np.ma.masked_invalid(panel.images[0].get_array()), np.nan)
        np.testing.assert_allclose(shown, values, **{"rtol": 0, "atol": 0, **tolerance})


NAMES = [f"L{layer}H{head}" for layer in range(2) for head in range(3)]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("tokens", [1, FEW, FEW + 1])
def test_every_head_is_drawn_as_given_and_has_numbers_if_tokens_are_few(tokens, causal):
    weights = causal_weights(2, tokens) if causal else torch.rand(2, tokens, tokens)
    figure = attention_maps(weights, [*map(str, range(tokens))], title="maps", causal=causal)
    shown = np.tri(tokens, dtype=bool) | (not causal)
    assert_images(figure, np.where(shown, weights, np.nan))
    for panel, head in zip(images(figure), weights, strict=True):
        written = {text.get_position(): float(text.get_text()) for text in panel.texts}
        cells = zip(*np.nonzero(shown), strict=True) if tokens <= FEW else []
        expected = {(key, query): float(head[query, key]) for query, key in cells}
        assert written == pytest.approx(expected, abs=0.0051)


def test_a_cell_has_the_number_of_its_head_however_large_but_not_if_there_are_thousands():
    values = torch.tensor([[0.5, -0.0001], [1e12, math.nan]])
    figure = heatmaps_of({"number": values}, title="numbers")
    assert_images(figure, [values])
    written = [text.get_text() for text in images(figure)[0].texts]
    assert written == ["5.0e-01", "-1.0e-04", "1.0e+12", "-"]
    many = {f"metric {number}": values_of(30, 9) for number in range(8)}
    assert not any(panel.texts for panel in images(heatmaps_of(many, title="metrics")))


def test_every_metric_has_its_own_scale_and_all_changes_share_one():
    names, estimated = ("loss_change", "loss_change_estimate"), 0.01 * values_of(2, 4, seed=1)
    values = dict(zip(names, (values_of(2, 4), estimated), strict=True))
    figure = heatmaps_of(values, title="metrics")
    for panel, of_metric in zip(images(figure), values.values(), strict=True):
        assert panel.images[0].get_clim() == (of_metric.min(), of_metric.max())
    changes = changes_of_heads(values, "zero")
    assert_images(changes, values.values())
    first, second = images(changes)
    assert first.images[0].norm is second.images[0].norm
    for extreme in ([0.0, 0.0], [1e-6, -2e-6], [math.nan, 1.0]):
        changes_of_heads({"loss_change": torch.tensor([extreme])}, "zero")


def test_a_patched_head_is_white_without_effect_and_red_if_it_carries_the_difference():
    denoising, noising = 4 * values_of(4, 2), 1 + 4 * values_of(4, 2, seed=1)
    denoising[0, 0], noising[0, 0] = 0.0, 1.0
    figure = patching_of_heads(denoising, noising, title="patching")
    assert_images(figure, [denoising, noising])
    cases = [(denoising, denoising), (noising, 1 - noising)]
    for panel, (scores, effect) in zip(images(figure), cases, strict=True):
        colours = panel.images[0].to_rgba(scores.numpy())
        np.testing.assert_allclose(colours[0, 0, :3], 0.97, atol=0.01)
        redder = colours[..., 0] - colours[..., 2]
        assert (np.sign(redder) == np.sign(effect.numpy()))[effect.abs().numpy() > 0.1].all()


def test_similarities_are_drawn_as_given_between_fixed_ends():
    vectors = torch.nn.functional.normalize(values_of(6, 99), dim=-1)
    for similarity, low in ((vectors @ vectors.T, -1), (vectors.abs() @ vectors.abs().T, 0)):
        figure = similarity_matrix(similarity, NAMES, title="similarity")
        assert_images(figure, [similarity])
        [panel] = images(figure)
        assert panel.images[0].get_clim() == (low, 1)
        assert [label.get_text() for label in panel.get_yticklabels()] == NAMES


def test_what_heads_read_is_drawn_as_given_with_a_column_for_each_part():
    shares = values_of(2, 6, 4) - 0.5
    shares[:, :3, 2:] = torch.nan
    parts = ["embedding", "L0H0", "L0 feed-forward", "position bias"]
    figure = parts_of_heads(dict(zip("qk", shares, strict=True)), NAMES, parts, title="", label="")
    assert_images(figure, shares)
    for panel in images(figure):
        low, high = panel.images[0].get_clim()
        assert low == -high
        assert [label.get_text() for label in panel.get_xticklabels()] == parts
        assert [label.get_text() for label in panel.get_yticklabels()] == NAMES


@pytest.mark.parametrize(
    ("steps", "scale"),
    [([7], "linear"), ([0, 1, 9, 999], "symlog"), ([*range(0, 2000, 100)], "linear")],
)
def test_every_head_has_a_line_in_the_colour_of_its_layer(steps, scale):
    """The scale is logarithmic if most steps are early."""
    metrics = {name: values_of(len(steps), 2, 3) for name in ("one", "other")}
    by_step = {step: {k: v[n] for k, v in metrics.items()} for n, step in enumerate(steps)}
    figure = history(by_step, title="history")
    for panel, values in zip(figure.axes, metrics.values(), strict=True):
        assert panel.get_xscale() == scale
        lines = np.array(panel.lines, dtype=object).reshape(2, 3)
        for (layer, head), line in np.ndenumerate(lines):
            np.testing.assert_array_equal(line.get_ydata(), values[:, layer, head])
            assert list(line.get_xdata()) == steps
            assert line.get_color() == COLOURS[layer]


# --- the images for TensorBoard ---


@pytest.mark.parametrize(("heads", "tokens"), [(1, 1), (3, 5), (12, 2), (2, 1024), (2, 700)])
def test_a_cell_has_the_colour_of_its_largest_weight_and_what_is_unknown_is_white(heads, tokens):
    weights, covered = causal_weights(heads, tokens), math.ceil(tokens / HEAD_PIXELS)
    weights[0, -1, 0] = torch.nan
    image = np.asarray(head_image(weights).convert("RGB")).astype(int)
    largest = F.max_pool2d(weights, covered, ceil_mode=True).numpy()
    cells = largest.shape[-1]
    scale, columns = HEAD_PIXELS // cells, math.ceil(math.sqrt(heads))
    for head, values in enumerate(largest):
        # As in all other pictures, the scale of colours is that of the square root.
        expected = matplotlib.colormaps["viridis"](np.sqrt(values), bytes=True)[..., :3].astype(int)
        expected[np.isnan(values) | ~np.tri(cells, dtype=bool)] = 255
        top, left = (GAP + place * (cells * scale + GAP) for place in divmod(head, columns))
        found = image[top : top + cells * scale, left : left + cells * scale]
        assert np.abs(found - expected.repeat(scale, 0).repeat(scale, 1)).max() <= 6
        image[top : top + cells * scale, left : left + cells * scale] = image[0, 0]
    assert (image == image[0, 0]).all()  # all else has the colour of the gaps


# --- position encodings: pictures are read off the encoding itself ---

SIZE = SIZES["block_size"]


def curves(panel):
    return np.array([line.get_ydata() for line in panel.lines])


@pytest.mark.parametrize("name", ["learned", "sinusoidal", "digits", "index", "normalized"])
def test_a_table_is_what_zeros_become(name):
    position = position_of(name)
    added = position(torch.zeros(1, SIZE, SIZES["embed_dim"]))[0].detach()
    used = added.any(dim=1)
    cosine = torch.cosine_similarity(added[:, None], added[None], dim=-1)
    cosine[~(used & used[:, None])] = torch.nan
    figure = position_picture(position)
    rows = len(images(figure)[0].images[0].get_array())
    assert_images(figure, [added.T[:rows], cosine], atol=1e-6)
    assert not added.T[rows:].any()


@pytest.mark.parametrize("name", ["alibi", "relative"])
def test_a_bias_over_distance_is_that_of_every_pair_so_far_apart(name):
    position = position_of(name)
    first, second = position_picture(position).axes
    bias = position.bias(SIZE, SIZE).detach()
    for head, line in enumerate(curves(first)):
        for distance, value in enumerate(line):
            np.testing.assert_allclose(bias[head].diagonal(-distance), value, rtol=1e-6)
    np.testing.assert_allclose(curves(second)[:, ::-1], bias[:, -1].softmax(-1), rtol=1e-5)


def test_rotary_shows_the_turn_of_each_pair_and_the_score_over_distance():
    figure = position_picture(position_of("rotary"))
    angle = torch.arange(SIZE)[:, None] / 10000 ** (torch.arange(0, 4, 2) / 4)
    assert_images(figure, [angle.cos().T], atol=1e-6)
    np.testing.assert_allclose(curves(figure.axes[-1])[0], angle.cos().mean(-1), atol=1e-6)


@pytest.mark.parametrize("name", ["alibi", "relative", "head_bias"])
def test_a_bias_map_shows_both_directions(name):
    position = position_of(name)
    assert_images(bias_map(position, 5), position.bias(5, 5).detach())
    if name == "head_bias":  # its picture is the whole map
        maps = np.where(np.tri(SIZE, dtype=bool), position.table.detach(), np.nan)
        assert_images(position_picture(position), maps)


def test_what_has_no_picture_or_no_map():
    for position in (position_of("none"), type("Own", (Position,), {})(**SIZES)):
        assert position_picture(position) is None
    for name, tokens in (("rotary", 5), ("none", 5), ("alibi", 11)):
        with refused():
            bias_map(position_of(name), tokens)
