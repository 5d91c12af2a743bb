"""Attention maps for logging while a model trains: every head of one layer, tokens on both axes.

Shapes: H heads, T tokens, each a query (down) and a key (across).
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image

from headscope.analysis.pictures.labels import picture_label, readable
from headscope.analysis.pictures.live import Canvas, Cells, pixels_across, pixels_down
from headscope.data.labels import reads_down
from headscope.errors import UserError

TITLE, TEXT = 16, 12  # pixels
GAP, TOP, RIGHT, BAR = 30, 66, 100, 14
BAR_TICKS = (0, 0.01, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1)


class AttentionGrid:
    """A picture of H attention maps over the same T tokens, made to be redrawn often.

    Labels are written once here; draw() colours the maps and writes a title. Any layer with these
    tokens and this many heads may share one grid. labels are those of `token_labels`, or texts; see
    `picture_label`. When there are too many to stand apart, every second, third, ... is shown.

    Raises UserError when there is no token or no head to draw.
    """

    def __init__(self, labels: Sequence[str], heads: int) -> None:
        tokens = len(labels)
        if tokens < 1 or heads < 1:
            raise UserError(f"{tokens=} and {heads=} must both be at least 1")
        self.heads, self.tokens = heads, tokens
        rows = math.isqrt(heads)
        columns = math.ceil(heads / rows)
        texts = [picture_label(text) for text in labels]
        # Chinese characters fill their squares: they need more room to stand apart.
        wide = any(map(reads_down, texts))
        room = max(320, min(352, 1120 // columns)) * (4 if wide else 3) // 3
        self.cell = max(1, room // tokens)
        size = min(TEXT, max(9.5, self.cell - wide))
        every = math.ceil((size + wide) / self.cell)
        texts = texts[::every]
        margin = 40 + math.ceil(
            max(max(pixels_across(text, size), pixels_down(text, size)) for text in texts)
        )

        side = self.cell * tokens
        body = rows * (side + GAP) - GAP
        width = margin + columns * (side + GAP) - GAP + RIGHT
        self.canvas = Canvas(width, TOP + body + margin)
        self.corners = []
        for head in range(heads):
            row, column = divmod(head, columns)
            x, y = margin + column * (side + GAP), TOP + row * (side + GAP)
            self.corners.append((x, y))
            write = self.canvas.write
            write(x + side / 2, y - 4, f"head {head}", TEXT, across="middle", down="bottom")
            middles = [(place + 0.5) * self.cell for place in range(0, tokens, every)]
            if column == 0:
                for middle, text in zip(middles, texts, strict=True):
                    write(x - 4, y + middle, text, size, across="right", down="middle")
                write(6, y + side / 2, "query", TEXT, down="middle", upright=True)
            if head + columns >= heads:
                for middle, text in zip(middles, texts, strict=True):
                    write(x + middle, y + side + 4, text, size, across="middle", upright=True)
                foot = y + side + margin - 6
                write(x + side / 2, foot, "key", TEXT, across="middle", down="bottom")
        self._bar = self._draw_bar(width - RIGHT + 24, min(480, body))

    def _draw_bar(self, x: int, height: int) -> Cells:
        """The colour scale, and the weights beside it."""
        for weight in BAR_TICKS:
            y = TOP + (1 - math.sqrt(weight)) * (height - 1)
            self.canvas.write(x + BAR + 4, y, f"{weight:g}", 10, down="middle")
        middle, text = TOP + height / 2, "attention weight (square-root colour scale)"
        self.canvas.write(x + BAR + 34, middle, text, TEXT, down="middle", upright=True)
        shares = np.linspace(1, 0, height)[:, None].repeat(BAR, axis=1)
        return Cells(shares, x, TOP, cell=1)

    def draw(self, weights: torch.Tensor | np.ndarray, title: str) -> Image.Image:
        """The picture of causal weights (H, T, T) whose rows sum to one.

        What lies above the diagonal, the future, is left white whatever it holds. The scale is of
        square roots: a linear one would sink 1/32 and less into the dark. Raises UserError when
        weights have another shape.
        """
        weights = torch.as_tensor(weights).detach().float().cpu().numpy()
        shape = (self.heads, self.tokens, self.tokens)
        if weights.shape != shape:
            raise UserError(f"{weights.shape=} must be (heads, tokens, tokens) = {shape}")
        past = np.tri(self.tokens, dtype=bool)
        maps = [
            Cells(np.where(past, np.sqrt(head.clip(min=0)), np.nan), x, y, self.cell)
            for head, (x, y) in zip(weights, self.corners, strict=True)
        ]
        return self.canvas.coloured(readable(title), TITLE, [*maps, self._bar])
