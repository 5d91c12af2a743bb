"""Builds an interactive HTML page with the attention maps of all heads on one text. The page is a
single file and works offline.

Shapes: L layers, H heads, T tokens. A map has a row per query and a column per key.
"""

import base64
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from headscope.data.labels import runs_down, visible
from headscope.errors import UserError

TEMPLATE = Path(__file__).with_name("page.html")
PLACEHOLDER = '"the data of the page"'  # the template contains this text, which the data replaces
LEVELS = 65535  # weights are stored as multiples of 1 / LEVELS, in two bytes each
MAX_WEIGHTS = 10 * 2**20  # maximum of L H T^2; the page needs about 4/3 bytes per weight


def max_tokens(layers: int, heads: int) -> int:
    """The largest number of tokens for which the page stays below about 15 MB."""
    return math.isqrt(MAX_WEIGHTS // (layers * heads))


def attention_page(
    *,
    weights: Tensor,
    labels: Sequence[str],
    figures: Sequence[Mapping[str, Any]],
    title: str,
) -> str:
    """The HTML text of a page that shows the attention weights (L, H, T, T) of all heads.

    The weights must be causal, and each row must sum to one. The page stores the weights as
    multiples of 1 / LEVELS, in about 4/3 L H T^2 bytes. `labels` contains a text for each token,
    for example from `token_labels`. The function `visible` replaces invisible characters in the
    labels. `figures` contains one mapping per head, ordered by layer, then by head. Each mapping
    has the keys "layer", "head" and "type"; its other keys are metrics. All texts are escaped, so
    that no text can end the script of the page or add HTML.

    Raises UserError if the sizes do not match, or if the weights are not causal attention weights.
    """
    shape = tuple(weights.shape)
    if len(shape) != 4 or shape[2] != shape[3] or 0 in shape:
        raise UserError(
            f"weights have the shape {shape}: it must be (layers, heads, tokens, tokens), each at "
            "least 1"
        )
    layers, heads, tokens, _ = shape
    if len(labels) != tokens:
        raise UserError(
            f"{len(labels)} labels do not match weights of {tokens} tokens: give one per token"
        )
    if len(figures) != layers * heads:
        raise UserError(
            f"figures of {len(figures)} heads do not match weights of {layers * heads}: give "
            "one entry per head"
        )
    for index, figure in enumerate(figures):
        given, expected = (figure.get("layer"), figure.get("head")), divmod(index, heads)
        if given != expected:
            raise UserError(
                f"figures[{index}] has (layer, head) {given}, expected {expected}: order the "
                "figures by layer, then head"
            )

    shown = [visible(text) for text in labels]
    data = {
        "title": title,
        "layers": layers,
        "heads": heads,
        "labels": shown,
        "runs": [runs_down(label) for label in shown],
        "figures": [{name: _plain(value) for name, value in row.items()} for row in figures],
        "levels": LEVELS,
        "weights": _packed(weights),
    }
    return TEMPLATE.read_text("utf-8").replace(PLACEHOLDER, _script_safe(data), 1)


def _packed(weights: Tensor) -> str:
    """Encode the lower triangle of each map, row by row, as little-endian uint16 in base64."""
    values = weights.detach().float().cpu().numpy()
    low, high = values.min(), values.max()
    if not (low >= 0 and high <= 1 + 1e-3):  # also finds NaN; bf16 may round to above 1
        raise UserError(f"weights range from {low:g} to {high:g}: they must be from 0 to 1")
    if np.triu(values, k=1).any():
        raise UserError("weights attend to future tokens: they must be 0 above the diagonal")
    rows, columns = np.tril_indices(values.shape[-1])
    levels = np.rint(values[..., rows, columns].clip(max=1) * LEVELS)
    return base64.b64encode(levels.astype("<u2").tobytes()).decode("ascii")


def _plain(value: Any) -> str | float | None:
    """Convert a metric to a JSON value. NaN and infinity become None, because JSON cannot represent
    them."""
    if value is None or isinstance(value, str | int):
        return value
    number = float(value)
    return number if math.isfinite(number) else None


def _script_safe(data: Mapping[str, Any]) -> str:
    """Encode `data` as ASCII JSON in which an HTML parser finds no tag, no entity and no
    comment."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
