"""The laws of the pictures of heads: every number where it belongs, on a scale that is fair, and
nothing that cannot be read."""

import io
import math

import numpy as np
import pytest
import torch
from drawn import (
    AWKWARD,
    TITLE,
    assert_images,
    assert_readable,
    causal_weights,
    images,
    past,
    words_of,
)
from matplotlib.colors import to_rgb
from refusals import refused

from headscope.analysis.pictures import (
    attention_maps,
    changes_of_heads,
    heatmaps_of,
    history,
    patching_of_heads,
    similarity_matrix,
)
from headscope.analysis.pictures.heads import FEW
from headscope.analysis.pictures.sheet import COLOURS, picture_label

every_shape = pytest.mark.parametrize("shape", [(1, 1), (4, 1), (8, 8)])


def values_of(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def words(tokens):
    return [f" word{index}" for index in range(tokens)]


# --- attention maps ---


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("heads", "tokens"), [(1, 1), (2, FEW), (8, FEW + 1)])
def test_every_head_is_drawn_as_given_and_has_numbers_if_tokens_are_few(heads, tokens, causal):
    weights = causal_weights(heads, tokens) if causal else torch.rand(heads, tokens, tokens)
    figure = attention_maps(weights, words(tokens), title="maps", causal=causal)
    shown = past(tokens) | (not causal)
    assert_images(figure, np.where(shown, weights, np.nan))
    for panel, head in zip(images(figure), weights, strict=True):
        written = {text.get_position(): float(text.get_text()) for text in panel.texts}
        cells = zip(*np.nonzero(shown), strict=True) if tokens <= FEW else []
        assert written == {
            (key, query): pytest.approx(float(head[query, key]), abs=0.0051) for query, key in cells
        }


def test_a_short_text_has_upright_labels():
    figure = attention_maps(causal_weights(4, 12), AWKWARD[-12:], title="Layer 0")
    ticks = [tick for panel in images(figure) for tick in panel.get_xticklabels()]
    assert {tick.get_rotation() for tick in ticks} == {0}
    assert ticks[-1].get_text().replace("\n", "") == picture_label(AWKWARD[-1])
    assert_readable(figure)


@pytest.mark.parametrize("tokens", [1, 64])
def test_nothing_is_cut_off_or_covered_and_all_of_up_to_64_tokens_have_their_label(tokens):
    title, labels = TITLE + " and a title that goes on" * 9, (AWKWARD * 9)[-tokens:]
    figure = attention_maps(causal_weights(2, tokens), labels, title=title)
    assert_readable(figure)
    drawn = words_of(attention_maps(causal_weights(2, tokens), words(tokens), title="labels"))
    assert all(drawn.count(picture_label(word)) >= 2 for word in words(tokens))
    for form, start in {"png": b"\x89PNG", "svg": b"<?xml"}.items():
        figure.savefig(file := io.BytesIO(), format=form, dpi=30)
        assert file.getvalue().startswith(start)


# --- one number for each head ---


@every_shape
def test_a_cell_has_the_colour_and_the_number_of_its_head(shape):
    values = values_of(*shape)
    changes = changes_of_heads(values, title="values", label="in nats")
    for figure in (heatmaps_of({"metric": values}, title="values"), changes):
        assert_images(figure, [values])
        [panel] = images(figure)
        assert len(panel.texts) == values.numel()
        colours = panel.images[0].to_rgba(values.numpy())[..., :3]
        for text in panel.texts:
            head, layer = text.get_position()
            assert float(text.get_text()) == pytest.approx(float(values[layer, head]), abs=0.051)
            contrast = np.mean(to_rgb(text.get_color())) - colours[layer, head].mean()
            assert abs(contrast) > 0.3
        assert_readable(figure)
    low, high = panel.images[0].get_clim()
    assert low == -high


@pytest.mark.parametrize(
    ("value", "text"), [(0.5, "0.50"), (-0.0001, "-1.0e-04"), (1e12, "1.0e+12"), (math.nan, "-")]
)
def test_a_number_of_any_size_is_written_short(value, text):
    figure = heatmaps_of({"number": torch.tensor([[value]])}, title="number")
    assert [written.get_text() for written in images(figure)[0].texts] == [text]


@pytest.mark.parametrize(("shape", "count"), [((1, 1), 5), ((8, 8), 2)])
def test_every_metric_has_its_own_heatmap_and_scale(shape, count):
    names = enumerate(AWKWARD[-count:])
    metrics = {f"{name * 3}{n}": values_of(*shape) * 10.0**-n for n, name in names}
    figure = heatmaps_of(metrics, title=TITLE)
    assert_images(figure, metrics.values())
    for panel, values in zip(images(figure), metrics.values(), strict=True):
        low, high = panel.images[0].get_clim()
        assert low <= values.min() <= values.max() <= high
        assert values.numel() == 1 or (low, high) == (values.min(), values.max())
    assert_readable(figure)


def test_one_head_that_changes_most_hides_no_other():
    """Changes of 0.98, 0.1 and a few thousandths all have colours that differ."""
    values = torch.tensor([[0.98, 0.12, 0.0095], [0.0036, 0.0017, -0.0027]])
    [panel] = images(changes_of_heads(values, title="changes", label="in nats per token"))
    places = panel.images[0].norm(values.numpy())  # 0.5 is the middle of the colours
    assert np.diff(np.sort(np.ravel(places))).min() > 0.02
    assert ((places - 0.5) * values.numpy() > 0).all()
    for extreme in ([0.0, 0.0], [1e-6, -2e-6], [math.nan, 1.0]):
        assert_readable(changes_of_heads(torch.tensor([extreme]), title="changes", label="nats"))


def test_several_changes_share_one_scale_and_each_has_its_name():
    changes = {"measured": values_of(2, 4), "estimated:": 0.01 * values_of(2, 4, seed=1)}
    figure = changes_of_heads(changes, title="changes", label="change of loss")
    assert_images(figure, changes.values())
    first, second = images(figure)
    assert first.images[0].norm is second.images[0].norm
    assert all(f"{name} change of loss" in words_of(figure) for name in changes)


@every_shape
def test_a_patched_head_is_white_without_effect_and_red_if_it_carries_the_difference(shape):
    denoising, noising = 4 * values_of(*shape), 1 + 4 * values_of(*shape, seed=1)
    denoising[0, 0], noising[0, 0] = 0.0, 1.0
    figure = patching_of_heads(denoising, noising, title=TITLE)
    assert_images(figure, [denoising, noising])
    cases = [(denoising, denoising), (noising, 1 - noising)]
    for panel, (scores, effect) in zip(images(figure), cases, strict=True):
        colours = panel.images[0].to_rgba(scores.numpy())
        np.testing.assert_allclose(colours[0, 0, :3], 0.97, atol=0.01)
        redder = colours[..., 0] - colours[..., 2]
        assert (np.sign(redder) == np.sign(effect.numpy()))[effect.abs().numpy() > 0.1].all()
    assert_readable(figure)


# --- pairs of heads, and steps ---


@every_shape
def test_similarities_are_drawn_as_given_between_fixed_ends(shape):
    vectors = torch.nn.functional.normalize(values_of(shape[0] * shape[1], 99), dim=-1)
    names = [f"L{layer}H{head}" for layer in range(shape[0]) for head in range(shape[1])]
    for similarity in (vectors @ vectors.T, vectors.abs() @ vectors.abs().T):
        figure = similarity_matrix(similarity, names, title=TITLE, label=TITLE)
        assert_images(figure, [similarity])
        [panel] = images(figure)
        assert panel.images[0].get_clim() == ((-1 if (similarity < 0).any() else 0), 1)
        labels = [label.get_text() for label in panel.get_yticklabels()]
        assert labels == names[:: max(1, round(len(names) / len(labels)))]
    assert_readable(figure)


@pytest.mark.parametrize(
    ("shape", "steps", "scale"),
    [
        ((1, 1), [7], "linear"),
        ((2, 2), [0, 1, 9, 999], "symlog"),  # most steps are early
        ((8, 8), [*range(0, 2000, 100)], "linear"),
    ],
)
def test_every_head_has_a_line_in_the_colour_of_its_layer(shape, steps, scale):
    metrics = {name: values_of(len(steps), *shape) for name in ("$x$", TITLE, "tiny")}
    metrics["tiny"] *= 1e-9
    figure = history(steps, metrics, title=TITLE)
    for panel, values in zip(figure.axes, metrics.values(), strict=True):
        assert panel.get_xscale() == scale
        lines = np.array(panel.lines, dtype=object).reshape(shape)
        for (layer, head), line in np.ndenumerate(lines):
            np.testing.assert_array_equal(line.get_ydata(), values[:, layer, head])
            assert list(line.get_xdata()) == steps
            assert line.get_color() == COLOURS[layer % len(COLOURS)]
    assert ("logarithmic" in words_of(figure)) == (scale == "symlog")
    [legend] = figure.legends
    styles = {(handle.get_color(), handle.get_linestyle()) for handle in legend.legend_handles}
    assert len(styles) == shape[0]
    assert_readable(figure)


@pytest.mark.parametrize(
    ("draw", "said"),
    [
        (lambda: attention_maps(torch.zeros(0, 3, 3), words(3), title="x"), "as many tokens"),
        (lambda: attention_maps(torch.zeros(1, 3, 4), words(3), title="x"), "as many tokens"),
        (lambda: heatmaps_of({}, title="x"), "at least one"),
        (lambda: history([], {}, title="x"), "at least one"),
        (lambda: heatmaps_of({"none": torch.zeros(0, 3)}, title="x"), "not empty"),
        (lambda: similarity_matrix(torch.eye(3), ["L0H0"], title="x"), "a name for each"),
    ],
)
def test_what_does_not_fit_is_refused(draw, said):
    with refused(said):
        draw()
