"""The pictures of a report show the numbers that their titles say."""

from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoint_files import configuration, content, save
from matplotlib.figure import Figure

import headscope
from headscope.analysis.head_statistics import HeadStatistics, measure_heads
from headscope.analysis.metrics import colour_ends
from headscope.analysis.report import drawing
from headscope.analysis.report.inputs import AblationResult
from headscope.checkpoint import Checkpoint

TEXT = "We the people"


def load(folder: Path, *overrides: str, seed: int = 0) -> Checkpoint:
    file = folder / f"{seed}.safetensors"
    save(content(configuration(*overrides), seed=seed)[0], file)
    return headscope.load(file)


def assert_maps(figure: Figure, expected: torch.Tensor) -> None:
    """The first maps of a picture have these values; the future is zero."""
    panels = [panel for panel in figure.axes if panel.images][: len(expected)]
    maps = [np.nan_to_num(np.ma.filled(panel.images[0].get_array(), 0)) for panel in panels]
    np.testing.assert_allclose(maps, expected, atol=1e-6)


def legend(figure: Figure) -> list[str]:
    """What red and blue mean in a difference."""
    [title] = figure.texts
    _, red, blue = title.get_text().replace("\nred: ", "\0").replace("\nblue: ", "\0").split("\0")
    return [red.replace("\n", " "), blue.replace("\n", " ")]


def test_one_head_less_another(tmp_path):
    reading = load(tmp_path).attention(TEXT)
    [(name, figure)] = drawing.difference_of_heads(reading, (1, 2), (0, 3))
    assert name == "difference_L1H2_L0H3"
    assert legend(figure) == ["more weight in L1H2", "more weight in L0H3"]
    assert_maps(figure, reading.weights[1:, 2] - reading.weights[:1, 3])


@pytest.mark.parametrize("block_size", [8, 5])
def test_one_checkpoint_less_another(tmp_path, block_size):
    ours = load(tmp_path)
    theirs = load(tmp_path, f"model.block_size={block_size}", seed=1)
    reading, other = ours.attention(TEXT), theirs.attention(TEXT)
    pictures = dict(drawing.difference_of_checkpoints(reading, ours, theirs))
    assert len(pictures) == 4
    difference = reading.weights[..., :block_size, :block_size] - other.weights
    for layer, heads in enumerate(difference):
        assert_maps(pictures[f"difference_mean_{layer}"], heads.mean(0, keepdim=True))
        assert_maps(pictures[f"difference_layer_{layer}"], heads)


def test_of_other_numbers_of_heads_and_layers_the_means_are_subtracted(tmp_path):
    ours = load(tmp_path)
    single = load(tmp_path, "model/attention=single_head", "model.layers=1", seed=1)
    reading = ours.attention(TEXT)
    drawn = dict(drawing.difference_of_checkpoints(reading, ours, single))
    swapped = dict(drawing.difference_of_checkpoints(single.attention(TEXT), single, ours))
    assert {*drawn} == {*swapped} == {"difference_mean_0", "single_and_multi_layer_0"}
    other, mean = single.attention(TEXT).weights[0], reading.weights[0].mean(0, keepdim=True)
    for sheet in (each["single_and_multi_layer_0"] for each in (drawn, swapped)):
        assert_maps(sheet, torch.cat([other, mean]))
        assert sheet.texts[0].get_text().replace("\n", " ").endswith("step 7, 4 heads")
    assert_maps(drawn["difference_mean_0"], mean - other)
    ours_said, theirs_said = legend(drawn["difference_mean_0"])
    assert ours_said.endswith("0, step 7, 4 heads")
    assert theirs_said.endswith("1, step 7, 1 head")


def test_two_checkpoints_never_have_the_same_name(tmp_path):
    labels = set()
    for run in ("first", "second"):
        folder = tmp_path / run / "checkpoints"
        folder.mkdir(parents=True)
        labels |= {drawing.label_of(load(folder, seed=seed)) for seed in (0, 1)}
    assert len(labels) == 4


def test_every_step_of_a_history_is_drawn_where_it_belongs():
    studies, steps = [], [0, 10, 30]
    for step in steps:
        figures = {"entropy": torch.tensor([[step + 0.25, step + 0.5]])}
        study = HeadStatistics(figures, {"entropy": 1.0}, ["-", "-"], torch.eye(2), tokens=8)
        studies.append((step, study))
    [(_, figure)] = drawing.history(studies)
    lines = [line for line in figure.axes[0].lines if len(line.get_xdata()) == 3]
    drawn = sorted((list(line.get_xdata()), list(line.get_ydata())) for line in lines)
    assert drawn == [(steps, [0.25, 10.25, 30.25]), (steps, [0.5, 10.5, 30.5])]


@pytest.mark.parametrize(("replace_by", "word"), [("zero", "zero"), ("mean", "its mean")])
def test_the_effect_of_heads_is_drawn_in_the_unit_it_names(replace_by, word):
    change = torch.tensor([[0.0125, -0.002]])
    result = AblationResult(replace_by, windows=3, loss=2.0, figures={"loss_change": change})
    [(_, figure)] = drawing.ablation(result)
    assert_maps(figure, change[None])
    words = figure.axes[0].get_title("left").replace("\n", " ")
    assert "in nats per token" in words
    assert f"replaced by {word}" in words


def test_metrics_are_drawn_with_fixed_ends_and_their_uniform_values(tmp_path):
    study = measure_heads(load(tmp_path).model, torch.randint(256, (2, 8)))
    [(name, figure), *_] = drawing.figures(study)
    assert name == "figures"
    panels = [panel for panel in figure.axes if panel.images]
    assert [panel.images[0].get_clim() for panel in panels] == [
        colour_ends(name, 8) for name in study.figures
    ]
    bars = [bar for panel in panels for bar in panel.child_axes]
    marks = [float(bar.lines[0].get_ydata()[0]) for bar in bars]
    assert marks == pytest.approx([study.uniform[name] for name in study.figures])
