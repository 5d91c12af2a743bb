"""Draws the attention of all heads of a layer as one small image, for TensorBoard.

This is done during training, so it must be fast: numpy and a palette, no figure and no text.
"""

import math

import numpy as np
from matplotlib import colormaps
from PIL import Image
from torch import Tensor

HEAD_PIXELS = 256  # maximum width and height of the map of a head
GAP = 4  # pixels between two maps
SHADES, WHITE, GREY = 254, 254, 255  # shades 0 to 253, then white and the colour of the gaps

DESCRIPTION = (
    "Each square is a head. Rows are queries, columns are keys, both in the order of the text. "
    "Colours show the square root of the attention weight: 0 is dark purple, 0.25 is blue-green, "
    "1 is yellow. White: keys after the query."
)
"""Explains the images in TensorBoard."""


def head_image(weights: Tensor) -> Image.Image:
    """The maps of all heads from weights (H, T, T): head 0 is at the top left, head 1 at its right.

    A colour shows the square root of a weight, as in all other pictures. The future and NaN are
    white. A weight covers a square of pixels. If there are more than HEAD_PIXELS tokens, a pixel
    shows the largest of the weights that it covers.
    """
    values = weights.detach().float().cpu().numpy()
    tokens = values.shape[-1]
    starts = np.arange(0, tokens, math.ceil(tokens / HEAD_PIXELS))
    values = np.maximum.reduceat(np.maximum.reduceat(values, starts, axis=1), starts, axis=2)
    heads, size, _ = values.shape
    shades = np.sqrt(np.nan_to_num(values).clip(0, 1)) * (SHADES - 1)
    future = np.triu(np.ones((size, size), dtype=bool), k=1)
    codes = np.where(future | np.isnan(values), WHITE, shades.round()).astype(np.uint8)
    scale = HEAD_PIXELS // size
    codes = codes.repeat(scale, axis=1).repeat(scale, axis=2)
    columns = math.ceil(math.sqrt(heads))
    rows, step = math.ceil(heads / columns), size * scale + GAP
    page = np.full((rows * step + GAP, columns * step + GAP), GREY, dtype=np.uint8)
    for head, code in enumerate(codes):
        top, left = (GAP + place * step for place in divmod(head, columns))
        page[top : top + len(code), left : left + len(code)] = code
    image = Image.fromarray(page)
    colours = colormaps["viridis"](np.linspace(0, 1, SHADES), bytes=True)[:, :3]
    image.putpalette(colours.tobytes() + bytes([255] * 3 + [190] * 3))  # also white and grey
    return image


def image_tag(layer: int, heads: int) -> str:
    """The TensorBoard tag of the image of a layer. It gives the order of the heads."""
    order = f"heads 0-{heads - 1}, left to right, top to bottom" if heads > 1 else "head 0"
    return f"attention/layer_{layer} ({order})"
