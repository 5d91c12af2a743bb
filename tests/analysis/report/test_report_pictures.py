"""The pictures of a report show the numbers that their titles say."""

import re

import numpy as np
import pytest
import torch
from checkpoint_files import configuration, content, save

import headscope
from headscope.analysis.head_statistics import measure_heads
from headscope.analysis.metrics import colour_ends
from headscope.analysis.report import drawing

TEXT = "We the people"


def load(folder, *overrides, seed=0):
    file = folder / f"{seed}.safetensors"
    save(content(configuration(*overrides), seed=seed)[0], file)
    return headscope.load(file)


def assert_maps(figure, expected):
    """The first maps of a picture have these values; the future is zero."""
    panels = [panel for panel in figure.axes if panel.images][: len(expected)]
    maps = [np.nan_to_num(np.ma.filled(panel.images[0].get_array(), 0)) for panel in panels]
    np.testing.assert_allclose(maps, expected, atol=1e-6)


def title_of(figure):
    return figure.texts[0].get_text().replace("\n", " ")


def test_one_head_less_another(tmp_path):
    reading = load(tmp_path).read(TEXT)
    [(name, figure)] = drawing.difference_of_heads(reading, (1, 2), (0, 3))
    assert name == "difference_L1H2_L0H3"
    assert title_of(figure).endswith("red: more weight in L1H2 blue: more weight in L0H3")
    assert_maps(figure, reading.attention[1:, 2] - reading.attention[:1, 3])


@pytest.mark.parametrize("block_size", [8, 5])
def test_one_checkpoint_less_another(tmp_path, block_size):
    ours = load(tmp_path)
    theirs = load(tmp_path, f"model.block_size={block_size}", seed=1)
    reading, other = ours.read(TEXT), theirs.read(TEXT)
    pictures = dict(drawing.difference_of_checkpoints(reading, ours, theirs))
    assert len(pictures) == 4
    difference = reading.attention[..., :block_size, :block_size] - other.attention
    for layer, heads in enumerate(difference):
        assert_maps(pictures[f"difference_mean_{layer}"], heads.mean(0, keepdim=True))
        assert_maps(pictures[f"difference_layer_{layer}"], heads)


def test_of_other_numbers_of_heads_and_layers_the_means_are_subtracted(tmp_path):
    ours = load(tmp_path)
    single = load(tmp_path, "model/attention=single_head", "model.layers=1", seed=1)
    reading = ours.read(TEXT)
    drawn = dict(drawing.difference_of_checkpoints(reading, ours, single))
    swapped = dict(drawing.difference_of_checkpoints(single.read(TEXT), single, ours))
    assert {*drawn} == {*swapped} == {"difference_mean_0", "single_and_multi_layer_0"}
    other, mean = single.read(TEXT).attention[0], reading.attention[0].mean(0, keepdim=True)
    for sheet in (each["single_and_multi_layer_0"] for each in (drawn, swapped)):
        assert_maps(sheet, torch.cat([other, mean]))
        assert title_of(sheet).endswith("step 7, 4 heads")
    assert_maps(drawn["difference_mean_0"], mean - other)
    legend = r"red: more .*0, step 7, 4 heads blue: more .*1, step 7, 1 head$"
    assert re.search(legend, title_of(drawn["difference_mean_0"]))


def test_two_checkpoints_never_have_the_same_name(tmp_path):
    labels = set()
    for run in ("first", "second"):
        folder = tmp_path / run / "checkpoints"
        folder.mkdir(parents=True)
        labels |= {drawing.label_of(load(folder, seed=seed)) for seed in (0, 1)}
    assert len(labels) == 4


def test_metrics_are_drawn_with_fixed_ends_and_their_uniform_values(tmp_path):
    study = measure_heads(load(tmp_path).model, torch.randint(256, (2, 8)))
    [(name, figure), *_] = drawing.metrics(study)
    assert name == "metrics"
    panels = [panel for panel in figure.axes if panel.images]
    ends = [panel.images[0].get_clim() for panel in panels]
    fixed = [number for number, name in enumerate(study.metrics) if name != "direct_effect"]
    expected = [colour_ends(name, 8) for name in study.metrics]
    assert [ends[number] for number in fixed] == [expected[number] for number in fixed]
    bars = [bar for panel in panels for bar in panel.child_axes]
    marks = [float(bar.lines[0].get_ydata()[0]) for bar in bars[: len(study.uniform)]]
    assert marks == pytest.approx(
        [study.uniform[name] for name in study.metrics if name in study.uniform]
    )
