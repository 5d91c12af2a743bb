"""The picture of the metrics in a report has the scales and the marks of these metrics."""

import pytest
import torch
from checkpoint_files import content, save

import headscope
from headscope.analysis.head_statistics import measure_heads
from headscope.analysis.metrics import colour_ends
from headscope.analysis.report.write import pictures_of


def test_metrics_are_drawn_with_fixed_ends_and_their_uniform_values(tmp_path):
    save(content()[0], tmp_path / "a.safetensors")
    loaded = headscope.load(tmp_path / "a.safetensors")
    study = measure_heads(loaded.model, torch.randint(256, (2, 8)))
    figure = dict(pictures_of(loaded.read("We"), study, None, None, []))["metrics"]
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
