"""The law of the images for TensorBoard: what a pixel means, and where each head is."""

import math

import matplotlib
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from drawn import causal_weights, past

from headscope.analysis.head_images import GAP, HEAD_PIXELS, head_image


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
        expected[np.isnan(values) | ~past(cells)] = 255
        top, left = (GAP + place * (cells * scale + GAP) for place in divmod(head, columns))
        found = image[top : top + cells * scale, left : left + cells * scale]
        assert np.abs(found - expected.repeat(scale, 0).repeat(scale, 1)).max() <= 6
        image[top : top + cells * scale, left : left + cells * scale] = image[0, 0]
    assert (image == image[0, 0]).all()  # all else has the colour of the gaps
