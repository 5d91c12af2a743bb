"""What a figure really draws, for the laws of the pictures."""

from unittest import mock

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from headscope.analysis.pictures.sheet import family_for

NO_FONT = "\U00012000"
"""A cuneiform sign, which no font of `sheet.FALLBACKS` has."""

needs_chinese_font = pytest.mark.skipif(
    family_for("多") is None,
    reason="no installed font has Chinese; Debian's fonts-wqy-zenhei is one",
)

# What tokenizers and people really give: broken bytes, controls, mathtext, other scripts.
AWKWARD = [
    *("", "\n", "\t\r", "\x00", "\ufffd", "\udc80", "$x_2$", "$\\nonsense$", "$$"),
    *("中文", "🦜", "مرحبا", "שלום", "\u0301", "\u202eabc", "W" * 99),
    *("多 1/3", "E5 A4", "「可」", "カー", "한국어", "नमस्ते", "สวัสดี", "e\u0301", "ё", "數" * 99),
]
TITLE = " ".join(AWKWARD)


def causal_weights(heads: int, tokens: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(heads, tokens, tokens, generator=generator)
    return scores.masked_fill(torch.ones(tokens, tokens).triu(1) > 0, -torch.inf).softmax(-1)


def past(tokens: int) -> np.ndarray:
    """The causal mask (T, T)."""
    return np.tril(np.ones((tokens, tokens), dtype=bool))


def drawn_texts(figure: Figure) -> list[tuple[str, Bbox]]:
    """Every text that is drawn, with the pixels it takes."""
    texts: list[tuple[str, Bbox]] = []
    draw = Text.draw

    def watched(self: Text, renderer, *args, **options) -> None:
        if self.get_visible() and self.get_text().strip():
            texts.append((self.get_text(), self.get_window_extent(renderer)))
        draw(self, renderer, *args, **options)

    with mock.patch.object(Text, "draw", watched):
        figure.draw_without_rendering()
    return texts


def words_of(figure: Figure) -> str:
    return " ".join(text for text, _ in drawn_texts(figure))


def assert_readable(figure: Figure) -> None:
    """No text leaves the picture, and none lies on another."""
    texts = drawn_texts(figure)
    assert texts
    size = figure.get_size_inches() * figure.dpi
    for text, box in texts:
        assert ((box.min >= 0) & (box.max <= size)).all(), text
    slack = figure.dpi / 72 * 1.5  # a box is a little higher than its ink
    boxes = np.array([box.extents for _, box in texts])
    apart = boxes[:, None, 2:] - slack <= boxes[None, :, :2]
    clash = ~(apart.any(-1) | apart.any(-1).T)
    np.fill_diagonal(clash, False)
    assert not clash.any(), [(texts[a][0], texts[b][0]) for a, b in np.argwhere(clash)]


def images(figure: Figure) -> list[Axes]:
    """The panels with an image, without the colour bars."""
    return [panel for panel in figure.axes if panel.images]


def assert_images(figure: Figure, expected, **tolerance: float) -> None:
    """The panels show these values, and no others. NaN stands where nothing is shown."""
    for panel, values in zip(images(figure), expected, strict=True):
        shown = np.ma.filled(np.ma.masked_invalid(panel.images[0].get_array()), np.nan)
        np.testing.assert_allclose(shown, values, **{"rtol": 0, "atol": 0, **tolerance})
