"""The pictures of a report that subtract: each shows the numbers that it says."""

from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoint_files import configuration, content
from matplotlib.figure import Figure

import headscope
from headscope.checkpoint import Checkpoint
from headscope.head_report import drawing

TEXT = "We the people"


def load(folder: Path, *overrides: str, seed: int = 0) -> Checkpoint:
    file = folder / f"{seed}.ckpt"
    torch.save(content(configuration(*overrides), seed=seed)[0], file)
    return headscope.load(file)


def maps_of(figure: Figure) -> list[np.ndarray]:
    """The maps of a picture, the future as zero."""
    panels = (panel for panel in figure.axes if panel.images)
    return [np.nan_to_num(np.ma.filled(panel.images[0].get_array(), 0)) for panel in panels]


def test_one_head_less_another(tmp_path: Path) -> None:
    reading = load(tmp_path).attention(TEXT)
    [(name, figure)] = drawing.pair(reading, (1, 2), (0, 3))
    assert name == "difference_L1H2_L0H3"
    np.testing.assert_allclose(
        maps_of(figure)[0], reading.weights[1, 2] - reading.weights[0, 3], atol=1e-6
    )


@pytest.mark.parametrize("block_size", [8, 5])
def test_one_checkpoint_less_another(tmp_path: Path, block_size: int) -> None:
    ours = load(tmp_path)
    theirs = load(tmp_path, f"model.block_size={block_size}", seed=1)
    reading, other = ours.attention(TEXT), theirs.attention(TEXT)
    pictures = dict(drawing.other(reading, ours, theirs))
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
    [(name, figure)] = drawing.other(reading, ours, single)
    assert name == "difference_mean_0"
    expected = reading.weights[0].mean(0) - single.attention(TEXT).weights[0, 0]
    np.testing.assert_allclose(maps_of(figure)[0], expected, atol=1e-6)
    words = " ".join(text.get_text() for text in figure.texts)
    assert "4 heads" in words
    assert "1 head" in words
