"""The laws of heatmaps that are logged: what a colour means, and that all of it can be read."""

import matplotlib
import numpy as np
import pytest
import torch
from drawn import assert_placed

from headscope.analysis.pictures.live_heatmaps import LiveHeatmaps, Panel

PANELS = {
    "share": Panel(["0", "1"], ["0", "1", "2"], 0, 1),
    "a name that is longer than its panel": Panel(["0", "1"], ["0", "1", "2"], 1, 32),
}


def values(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: panel.low + (panel.high - panel.low) * torch.rand(2, 3, generator=generator)
        for name, panel in PANELS.items()
    }


def cells(heatmaps: LiveHeatmaps, picture, name: str) -> np.ndarray:
    """The colours (R, C, 3) of a panel, each the same to its cell's very edge."""
    (left, top), cell = heatmaps.corners[name], PANELS[name].cell
    pixels = np.asarray(picture.convert("RGB"))[top : top + 2 * cell, left : left + 3 * cell]
    squares = pixels.reshape(2, cell, 3, cell, 3)
    assert (squares == squares[:, :1, :, :1]).all()
    return squares[:, 0, :, 0]


def test_a_colour_is_a_place_on_its_panels_scale():
    heatmaps, given = LiveHeatmaps(PANELS), values(0)
    heatmaps.draw(values(1), "another before")
    picture = heatmaps.draw(given, "title")
    for name, panel in PANELS.items():
        share = (given[name] - panel.low) / (panel.high - panel.low)
        expected = matplotlib.colormaps["viridis"](share.numpy(), bytes=True)[..., :3]
        shown = cells(heatmaps, picture, name)
        assert np.abs(shown.astype(int) - expected).max() <= 4  # a step of the scale


def test_beyond_its_ends_a_scale_stays_and_what_is_unknown_is_white():
    heatmaps = LiveHeatmaps({"share": PANELS["share"]})
    low, high, unknown = -3.0, 7.0, float("nan")
    given = torch.tensor([[low, high, unknown], [0.0, 1.0, unknown]])
    colours = cells(heatmaps, heatmaps.draw({"share": given}, "title"), "share")
    assert (colours[0] == colours[1]).all()
    assert (colours[0, 2] == 255).all()
    assert not (colours[:, :2] == 255).all(axis=-1).any()


def test_names_stand_at_what_they_name():
    rows, columns = ["first", "second"], ["L0H0", "L0H1", "L1H0"]
    heatmaps = LiveHeatmaps({name: Panel(rows, columns, 0, 1) for name in "abcde"})
    for panel, (left, top) in heatmaps.corners.items():
        at = {}
        for text in heatmaps.canvas.written:
            across = text.left + text.width / 2 - left
            down = text.top + text.height / 2 - top
            at.setdefault(text.text, []).append((across, down))
        [title] = [places for name, places in at.items() if name.startswith(f"{panel}  (")]
        assert -12 <= title[0][1] <= 0 <= title[0][0]
        for number, name in enumerate(rows):
            assert any(-60 < x < 0 and abs(y - 24 * number - 12) < 2 for x, y in at[name])
        for number, name in enumerate(columns):
            assert any(abs(x - 24 * number - 12) < 2 and 48 < y < 80 for x, y in at[name])


@pytest.mark.parametrize("panels", [1, 2, 5])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (4, 4), (64, 64)])
def test_all_names_lie_inside_the_picture_and_off_the_colours(panels, rows, columns):
    names = [f"L{number}H0" for number in range(64)]
    given = {f"figure {n}": Panel(names[:rows], names[:columns], 0, 1, 6) for n in range(panels)}
    heatmaps = LiveHeatmaps(given)
    picture = heatmaps.draw({name: torch.zeros(rows, columns) for name in given}, "title")
    size = (6 * columns, 6 * rows)
    assert_placed(heatmaps.canvas, picture, heatmaps.corners.values(), size)


def test_another_shape_is_refused_with_both():
    heatmaps = LiveHeatmaps({"share": PANELS["share"]})
    with pytest.raises(ValueError, match=r"share is of shape \(3, 2\), its panel of \(2, 3\)"):
        heatmaps.draw({"share": torch.zeros(3, 2)}, "title")
