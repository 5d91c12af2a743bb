"""The laws of the images for TensorBoard: what a pixel means, and where each head is."""

import matplotlib
import numpy as np
import pytest
import torch
from drawn import causal_weights, past

from headscope.analysis.head_images import GAP, HEAD_PIXELS, head_image


def maps(weights: torch.Tensor, columns: int) -> list[np.ndarray]:
    """The colour of each cell (cells, cells, 3) in the map of each head. `columns` maps are in a
    row. All else in the image has the colour of the gaps."""
    image = np.asarray(head_image(weights).convert("RGB")).astype(int)
    size = (image.shape[1] - GAP) // columns - GAP
    assert size <= HEAD_PIXELS
    found, rest = [], image.copy()
    for head in range(len(weights)):
        top, left = (GAP + place * (size + GAP) for place in divmod(head, columns))
        area = slice(top, top + size), slice(left, left + size)
        rest[area] = image[0, 0]
        scale = max(1, size // weights.shape[-1])
        cells = image[area][::scale, ::scale]
        assert np.array_equal(image[area], cells.repeat(scale, axis=0).repeat(scale, axis=1))
        found.append(cells)
    assert (rest == image[0, 0]).all()
    return found


def close(colours: np.ndarray, weights: np.ndarray) -> bool:
    """Whether the colours are those of the square root of weights, as in all other pictures."""
    expected = matplotlib.colormaps["viridis"](np.sqrt(np.atleast_1d(weights)), bytes=True)[..., :3]
    return np.abs(colours - expected.astype(int)).max() <= 6


@pytest.mark.parametrize(
    ("heads", "tokens", "columns"), [(1, 1, 1), (3, 5, 2), (4, 200, 2), (12, 2, 4)]
)
def test_a_colour_is_the_root_of_its_weight_and_the_future_is_white(heads, tokens, columns):
    weights, future = causal_weights(heads, tokens), ~past(tokens)
    found = maps(weights + torch.from_numpy(future), columns)
    for head, cells in enumerate(found):
        assert (cells[future] == 255).all()
        assert close(cells[~future], weights[head].numpy()[~future])


@pytest.mark.parametrize(("tokens", "covered"), [(1024, 4), (700, 3)])
def test_a_pixel_of_a_long_text_is_the_largest_weight_that_it_covers(tokens, covered):
    weights = causal_weights(2, tokens)
    for head, cells in enumerate(maps(weights, 2)):
        for row, column in ((0, 0), (100, 30), (len(cells) - 1, 7), (len(cells) - 1,) * 2):
            rows, columns = (slice(covered * at, covered * (at + 1)) for at in (row, column))
            assert close(cells[row, column], weights[head, rows, columns].max().numpy())


def test_what_is_unknown_is_white_and_beyond_its_ends_the_scale_stays():
    weights = torch.tensor([[[2.0, 0, 0], [torch.nan, 1, 0], [-1, 0, 1]]])
    [cells] = maps(weights, 1)
    assert (cells[1, 0] == 255).all()
    assert (cells[0, 0] == cells[1, 1]).all()
    assert (cells[2, 0] == cells[2, 1]).all()
