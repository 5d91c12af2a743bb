"""Attention maps that are drawn once and recoloured often, for logging while a model trains: every
head of one layer side by side, tokens on both axes.

Shapes: H heads, T tokens, each a query (down) and a key (across).
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties

from headscope.analysis.pictures.labels import FONT_FILE, token_label


class AttentionGrid:
    """A picture of H attention maps over the same T tokens, made to be redrawn often.

    Axes, labels and colour bar, which cost matplotlib far more than the maps, are drawn once here;
    draw() lays new maps and a new title over a copy of them. Any layer with these tokens and this
    many heads may share one grid. labels are the tokens' texts as decoded; see token_label. When
    there are too many to stand apart, every second, third, ... is shown.

    Raises ValueError when there is no token or no head to draw.
    """

    def __init__(self, labels: Sequence[str], heads: int) -> None:
        tokens = len(labels)
        if tokens < 1 or heads < 1:
            raise ValueError(f"{tokens=} and {heads=} must both be at least 1")
        self._shape = (heads, tokens, tokens)
        rows = math.isqrt(heads)
        columns = math.ceil(heads / rows)

        # At 72 dots per inch a point is a pixel: every length below, fonts included, is in pixels.
        cell = max(1, max(320, min(352, 1120 // columns)) // tokens)
        font = FontProperties(fname=FONT_FILE, size=min(12, max(9.5, cell)))
        every = math.ceil(font.get_size() / cell)
        ticks, texts = range(0, tokens, every), [token_label(text) for text in labels[::every]]
        self.figure = Figure(dpi=72, facecolor="white")
        self._canvas = FigureCanvasAgg(self.figure)
        measure = self._canvas.get_renderer().get_text_width_height_descent
        margin = 36 + math.ceil(max(measure(text, font, ismath=False)[0] for text in texts))

        side, gap, top, right = cell * tokens, 30, 66, 100
        width = margin + columns * (side + gap) - gap + right
        height = top + rows * (side + gap) - gap + margin
        self.figure.set_size_inches(width / 72, height / 72)

        def axes(x: float, y: float, w: float, h: float) -> Axes:
            """Axes w by h whose upper left corner is x right of and y below the picture's."""
            hair = 1e-6  # or float error makes matplotlib round a map up to one more pixel
            box = ((x + hair) / width, 1 - (y + h - hair) / height)
            size = ((w - 2 * hair) / width, (h - 2 * hair) / height)
            return self.figure.add_axes((*box, *size), facecolor="none", frame_on=False)

        norm = PowerNorm(0.5, vmin=0, vmax=1)  # linear would sink 1/32 and less into the dark
        blank = np.full((tokens, tokens), np.nan)
        self._cell = cell
        self._images, self._corners = [], []
        for head in range(heads):
            row, column = divmod(head, columns)
            corner = margin + column * (side + gap), top + row * (side + gap)
            panel = axes(*corner, side, side)
            image = panel.imshow(
                blank,
                norm=norm,
                cmap="viridis",
                aspect="auto",
                interpolation="nearest",
                interpolation_stage="rgba",  # colours T x T weights, not every pixel
            )
            self._images.append(image)
            self._corners.append(corner)
            panel.set_title(f"head {head}", fontsize=12, pad=5)
            panel.set(xticks=[], yticks=[])
            if column == 0:
                panel.set_yticks(ticks, texts, fontproperties=font, parse_math=False)
                panel.set_ylabel("query", fontsize=12)
            if head + columns >= heads:
                panel.set_xticks(ticks, texts, fontproperties=font, parse_math=False, rotation=90)
                panel.set_xlabel("key", fontsize=12)
            panel.tick_params(length=0, pad=4)

        bar = axes(width - right + 24, top, 14, min(480, rows * (side + gap) - gap))
        self.figure.colorbar(self._images[0], cax=bar)
        bar.set_yticks([0, 0.01, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1])
        bar.set_ylabel("attention weight (square-root colour scale)", fontsize=12)
        self._title = self.figure.text(
            margin / width, 1 - 16 / height, "", va="top", fontsize=16, parse_math=False
        )
        self._canvas.draw()
        self._frame = self._canvas.copy_from_bbox(self.figure.bbox)

    def draw(self, weights: torch.Tensor | np.ndarray, title: str) -> np.ndarray:
        """The picture (height, width, 3), uint8, of causal weights (H, T, T) whose rows sum to one.

        What lies above the diagonal, the future, is left white whatever it holds. self.figure shows
        the same until the next draw. Raises ValueError when weights have another shape.
        """
        weights = torch.as_tensor(weights).detach().float().cpu().numpy()
        if weights.shape != self._shape:
            raise ValueError(f"{weights.shape=} must be (heads, tokens, tokens) = {self._shape}")
        future = np.triu(np.ones(self._shape[1:], dtype=bool), k=1)
        self._title.set_text(title)
        renderer = self._canvas.get_renderer()
        renderer.restore_region(self._frame)
        self._title.draw(renderer)
        picture = np.asarray(renderer.buffer_rgba())[..., :3].copy()
        # Squares of one colour are laid in faster than matplotlib draws them.
        for image, (x, y), head in zip(self._images, self._corners, weights, strict=True):
            image.set_data(np.where(future, np.nan, head))
            colours = image.to_rgba(head, bytes=True)[..., :3]
            colours[future] = 255
            square = colours.repeat(self._cell, axis=0).repeat(self._cell, axis=1)
            picture[y : y + len(square), x : x + len(square)] = square
        return picture
