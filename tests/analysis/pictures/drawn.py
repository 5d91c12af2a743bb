"""What a figure shows, for the laws of the pictures."""

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure


def causal_weights(heads: int, tokens: int) -> torch.Tensor:
    scores = torch.randn(heads, tokens, tokens, generator=torch.Generator().manual_seed(0))
    return scores.masked_fill(torch.ones(tokens, tokens).triu(1) > 0, -torch.inf).softmax(-1)


def past(tokens: int) -> np.ndarray:
    """The causal mask (T, T)."""
    return np.tril(np.ones((tokens, tokens), dtype=bool))


def images(figure: Figure) -> list[Axes]:
    """The panels with an image, without the colour bars."""
    return [panel for panel in figure.axes if panel.images]


def assert_images(figure: Figure, expected, **tolerance: float) -> None:
    """The panels show these values, and no others. NaN stands where nothing is shown."""
    for panel, values in zip(images(figure), expected, strict=True):
        shown = np.ma.filled(np.ma.masked_invalid(panel.images[0].get_array()), np.nan)
        np.testing.assert_allclose(shown, values, **{"rtol": 0, "atol": 0, **tolerance})
