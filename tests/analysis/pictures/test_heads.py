"""The laws of the pictures of heads: every number where it belongs, on a scale that is fair."""

import math

import numpy as np
import pytest
import torch
from drawn import AWKWARD, TITLE, assert_images, assert_readable, assert_saved, images, words_of
from matplotlib.colors import to_rgb
from refusals import refused

from headscope.analysis.pictures import (
    changes_of_heads,
    heatmaps_of,
    history,
    patching_of_heads,
    similarity_matrix,
)
from headscope.analysis.pictures.sheet import COLOURS


def values_of(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def luminance(colour):
    rgb = np.array(to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


@pytest.mark.parametrize("shape", [(1, 1), (1, 4), (4, 1), (8, 8)])
def test_a_cell_has_the_colour_and_the_number_of_its_head(shape):
    values = values_of(*shape)
    changes = changes_of_heads(values, title="values", label="in nats")
    for figure in (heatmaps_of({"metric": values}, title="values"), changes):
        assert_images(figure, [values])
        [panel] = images(figure)
        for text in panel.texts:
            head, layer = text.get_position()
            assert float(text.get_text()) == pytest.approx(float(values[layer, head]), abs=0.051)
            cell = luminance(panel.images[0].to_rgba(values.numpy())[layer, head, :3])
            ink = luminance(text.get_color())
            assert (max(ink, cell) + 0.05) / (min(ink, cell) + 0.05) >= 4.5  # readable, by WCAG
        assert len(panel.texts) == values.numel()
        assert_readable(figure)
    low, high = panel.images[0].get_clim()
    assert low == -high


def test_a_number_of_any_size_is_written_short():
    for value, text in (
        *((0.0, "0.00"), (0.5, "0.50"), (-0.0001, "-1.0e-04"), (0.0123, "0.0123")),
        *((3.14159, "3.14"), (1234.5, "1234"), (1e12, "1.0e+12"), (-0.0, "0.00")),
        *((float("nan"), "-"), (float("inf"), "-")),
    ):
        figure = heatmaps_of({"number": torch.tensor([[value]])}, title="number")
        assert [written.get_text() for written in images(figure)[0].texts] == [text]


@pytest.mark.parametrize(("shape", "count"), [((1, 1), 1), ((1, 1), 5), ((8, 8), 2), ((4, 1), 9)])
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
    """Changes of 0.98, 0.1 and a few thousandths all have colours and numbers that differ."""
    values = torch.tensor([[0.98, 0.12, 0.0095], [0.0036, 0.0017, -0.0027]])
    [panel] = images(changes_of_heads(values, title="changes", label="in nats per token"))
    places = panel.images[0].norm(values.numpy())  # 0.5 is the middle of the colours
    assert np.diff(np.sort(np.ravel(places))).min() > 0.02
    assert ((places - 0.5) * values.numpy() > 0).all()
    written = [text.get_text() for text in panel.texts]
    assert written == ["0.98", "0.12", "0.0095", "0.0036", "0.0017", "-0.0027"]
    for extreme in ([0.0, 0.0], [0.3, 0.3], [1e-6, -2e-6], [math.nan, 1.0]):
        assert_saved(changes_of_heads(torch.tensor([extreme]), title="changes", label="in nats"))


def test_several_changes_share_one_scale_and_each_has_its_name():
    changes = {"measured": values_of(2, 4), "estimated:": 0.01 * values_of(2, 4, seed=1)}
    figure = changes_of_heads(changes, title="changes", label="change of loss")
    assert_images(figure, changes.values())
    first, second = images(figure)
    assert first.images[0].norm is second.images[0].norm
    assert all(f"{name} change of loss" in words_of(figure) for name in changes)
    assert_readable(figure)


@pytest.mark.parametrize(("shape", "scale"), [((1, 1), 0.3), ((4, 1), 0.3), ((8, 8), 4.0)])
def test_a_patched_head_is_white_without_effect_and_red_if_it_carries_the_difference(shape, scale):
    denoising, noising = scale * values_of(*shape), 1 + scale * values_of(*shape, seed=1)
    denoising[0, 0], noising[0, 0] = 0.0, 1.0
    figure = patching_of_heads(denoising, noising, title=TITLE)
    assert_images(figure, [denoising, noising])
    cases = [(denoising, denoising), (noising, 1 - noising)]
    for panel, (scores, effect) in zip(images(figure), cases, strict=True):
        colours = panel.images[0].to_rgba(scores.numpy())
        np.testing.assert_allclose(colours[0, 0, :3], 0.97, atol=0.01)
        redder = colours[..., 0] - colours[..., 2]
        assert (np.sign(redder) == np.sign(effect.numpy()))[effect.abs().numpy() > 0.1].all()
        low, high = panel.images[0].get_clim()
        assert low <= scores.min() <= scores.max() <= high
    assert_readable(figure)


@pytest.mark.parametrize(("shape", "sign"), [((1, 1), 1), ((1, 4), 1), ((4, 1), -1), ((8, 8), -1)])
def test_similarities_are_drawn_as_given_between_fixed_ends(shape, sign):
    vectors = values_of(shape[0] * shape[1], 99)
    similarity = torch.nn.functional.normalize(vectors if sign < 0 else vectors.abs(), dim=-1)
    similarity = similarity @ similarity.T
    names = [f"L{layer}H{head}" for layer in range(shape[0]) for head in range(shape[1])]
    figure = similarity_matrix(similarity, names, title=TITLE, label=TITLE)
    assert_images(figure, [similarity])
    [panel] = images(figure)
    assert panel.images[0].get_clim() == ((-1 if (similarity < 0).any() else 0), 1)
    labels = [label.get_text() for label in panel.get_yticklabels()]
    assert labels == names[:: max(1, round(len(names) / len(labels)))]
    places = {float(line.get_xdata()[0]) for line in panel.lines if len(set(line.get_xdata())) == 1}
    assert places == {layer * shape[1] - 0.5 for layer in range(1, shape[0])}
    assert_readable(figure)


MANY = list(range(0, 2000, 100))


@pytest.mark.parametrize(
    ("shape", "steps"), [((1, 1), [7]), ((1, 4), [0, 1]), ((8, 8), MANY), ((4, 1), [1, 10, 99])]
)
def test_every_head_has_a_line_in_the_colour_of_its_layer(shape, steps):
    metrics = {name: values_of(len(steps), *shape) for name in ("$x$", TITLE, "tiny")}
    metrics["tiny"] *= 1e-9
    figure = history(steps, metrics, title=TITLE)
    for panel, values in zip(figure.axes, metrics.values(), strict=True):
        lines = np.array(panel.lines, dtype=object).reshape(shape)
        for (layer, head), line in np.ndenumerate(lines):
            np.testing.assert_array_equal(line.get_ydata(), values[:, layer, head])
            assert list(line.get_xdata()) == steps
            assert line.get_color() == COLOURS[layer % len(COLOURS)]
    [legend] = figure.legends
    styles = [(handle.get_color(), handle.get_linestyle()) for handle in legend.legend_handles]
    assert len(set(styles)) == shape[0]
    assert_readable(figure)
    assert_saved(figure)


def test_steps_are_logarithmic_only_where_most_are_early():
    for steps, scale in (
        *(([0, 100, 200, 300, 400], "linear"), ([5], "linear")),
        *(([1, 2, 4, 8, 1000], "symlog"), ([0, 1, 10, 100, 1000], "symlog")),
    ):
        figure = history(steps, {"loss": values_of(len(steps), 2, 2)}, title="steps")
        assert figure.axes[0].get_xscale() == scale
        assert ("logarithmic" in words_of(figure)) == (scale != "linear")


def test_what_has_no_metric_or_no_head_is_refused():
    for draw, words in (
        (lambda: heatmaps_of({}, title="none"), "at least one"),
        (lambda: history([], {}, title="none"), "at least one"),
        (lambda: heatmaps_of({"none": torch.zeros(0, 3)}, title="none"), "not empty"),
        (lambda: similarity_matrix(torch.eye(3), ["L0H0"], title="none"), "a name for each"),
    ):
        with refused(words):
            draw()
