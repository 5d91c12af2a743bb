"""The pictures of a report that subtract: each shows the numbers that it says."""

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


def maps_of(figure: Figure) -> list[np.ndarray]:
    """The maps of a picture, the future as zero."""
    panels = (panel for panel in figure.axes if panel.images)
    return [np.nan_to_num(np.ma.filled(panel.images[0].get_array(), 0)) for panel in panels]


def legend(figure: Figure) -> list[str]:
    """What red and blue mean in a difference."""
    [title] = figure.texts
    _, red, blue = title.get_text().replace("\nred: ", "\0").replace("\nblue: ", "\0").split("\0")
    return [red.replace("\n", " "), blue.replace("\n", " ")]


def test_one_head_less_another(tmp_path: Path) -> None:
    reading = load(tmp_path).attention(TEXT)
    [(name, figure)] = drawing.difference_of_heads(reading, (1, 2), (0, 3))
    assert name == "difference_L1H2_L0H3"
    assert legend(figure) == ["more weight in L1H2", "more weight in L0H3"]
    np.testing.assert_allclose(
        maps_of(figure)[0], reading.weights[1, 2] - reading.weights[0, 3], atol=1e-6
    )


@pytest.mark.parametrize("block_size", [8, 5])
def test_one_checkpoint_less_another(tmp_path: Path, block_size: int) -> None:
    ours = load(tmp_path)
    theirs = load(tmp_path, f"model.block_size={block_size}", seed=1)
    reading, other = ours.attention(TEXT), theirs.attention(TEXT)
    pictures = dict(drawing.difference_of_checkpoints(reading, ours, theirs))
    names = {f"difference_{kind}_{layer}" for kind in ("mean", "layer") for layer in (0, 1)}
    assert pictures.keys() == names
    difference = reading.weights[..., :block_size, :block_size] - other.weights
    for layer in (0, 1):
        [mean] = maps_of(pictures[f"difference_mean_{layer}"])[:1]
        np.testing.assert_allclose(mean, difference[layer].mean(0), atol=1e-6)
        heads = maps_of(pictures[f"difference_layer_{layer}"])[:4]
        np.testing.assert_allclose(heads, difference[layer], atol=1e-6)


def test_of_other_numbers_of_heads_and_layers_the_means_are_subtracted(tmp_path: Path) -> None:
    ours = load(tmp_path)
    single = load(tmp_path, "model/attention=single_head", "model.layers=1", seed=1)
    reading = ours.attention(TEXT)
    drawn = dict(drawing.difference_of_checkpoints(reading, ours, single))
    assert set(drawn) == {"difference_mean_0", "single_and_multi_layer_0"}
    figure = drawn["difference_mean_0"]
    expected = reading.weights[0].mean(0) - single.attention(TEXT).weights[0, 0]
    np.testing.assert_allclose(maps_of(figure)[0], expected, atol=1e-6)
    ours_said, theirs_said = legend(figure)
    assert ours_said.endswith("0, step 7, 4 heads")
    assert theirs_said.endswith("1, step 7, 1 head")


def test_two_checkpoints_never_have_the_same_name(tmp_path: Path) -> None:
    labels = set()
    for run in ("first", "second"):
        folder = tmp_path / run / "checkpoints"
        folder.mkdir(parents=True)
        labels |= {drawing.label_of(load(folder, seed=seed)) for seed in (0, 1)}
    assert len(labels) == 4


def test_every_step_of_a_history_is_drawn_where_it_belongs() -> None:
    studies = []
    for step in (0, 10, 30):
        figures = {"entropy": torch.tensor([[step + 0.25, step + 0.5]])}
        uniform = {"entropy": 1.0}
        studies.append((step, HeadStatistics(figures, uniform, ["-", "-"], torch.eye(2), tokens=8)))
    [(_, figure)] = drawing.history(studies)
    lines = [line for line in figure.axes[0].lines if len(line.get_xdata()) == 3]
    drawn = sorted((list(line.get_xdata()), list(line.get_ydata())) for line in lines)
    steps = [0, 10, 30]
    assert drawn == [(steps, [0.25, 10.25, 30.25]), (steps, [0.5, 10.5, 30.5])]


@pytest.mark.parametrize(("replace_by", "word"), [("zero", "zero"), ("mean", "its mean")])
def test_worth_is_drawn_in_the_unit_it_names(replace_by, word) -> None:
    change = torch.tensor([[0.0125, -0.002]])
    result = AblationResult(replace_by, windows=3, loss=2.0, figures={"loss_change": change})
    [(_, figure)] = drawing.ablation(result)
    np.testing.assert_allclose(maps_of(figure)[0], [[0.0125, -0.002]], rtol=1e-5)
    words = figure.axes[0].get_title("left").replace("\n", " ")
    assert "in nats per token" in words
    assert f"replaced by {word}" in words


def test_the_most_important_heads_are_those_without_which_the_loss_rises_most() -> None:
    change = torch.tensor([[0.1, -0.5, 0.3], [0.2, 0.9, 0.0]])
    figures = {"loss_change": change, "loss_change_error": change.abs() / 10}
    found = AblationResult("zero", windows=3, loss=2.0, figures=figures).most_important(3)
    assert [name for name, _ in found] == ["L1H1", "L0H2", "L1H0"]
    assert [row["loss_change"] for _, row in found] == pytest.approx([0.9, 0.3, 0.2])
    assert [row["loss_change_error"] for _, row in found] == pytest.approx([0.09, 0.03, 0.02])


def test_figures_are_drawn_with_the_ends_of_tensorboards_heatmaps(tmp_path: Path) -> None:
    loaded = load(tmp_path)
    study = measure_heads(loaded.model, torch.randint(256, (2, 8)))
    [(name, figure), *_] = drawing.figures(study)
    assert name == "figures"
    panels = [panel for panel in figure.axes if panel.images]
    for panel, figure_name in zip(panels, study.figures, strict=True):
        assert panel.images[0].get_clim() == colour_ends(figure_name, 8)
    bars = [bar for panel in panels for bar in panel.child_axes]
    marks = [float(bar.lines[0].get_ydata()[0]) for bar in bars]
    assert marks == pytest.approx([study.uniform[name] for name in study.figures])
