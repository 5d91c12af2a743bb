"""Every attention head of a model reading one text, as one HTML file that needs no network.

Shapes: L layers, H heads, T tokens, each a query (down) and a key (across).
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
PLACE = '"the data of the page"'  # where it stands in the template
LEVELS = 65535  # a weight is stored as a whole number of these parts, in two bytes
MOST_WEIGHTS = 10 * 2**20  # of which half are seen, two bytes each, in base64


def most_tokens(layers: int, heads: int) -> int:
    """As many tokens as keep a page of so many heads below about 15 MB."""
    return math.isqrt(MOST_WEIGHTS // (layers * heads))


def attention_page(
    *,
    weights: Tensor,
    labels: Sequence[str],
    figures: Sequence[Mapping[str, Any]],
    title: str,
) -> str:
    """A whole HTML page that shows the weights (L, H, T, T) of every head.

    Weights are causal and their rows sum to one; the page holds them to within 1 / LEVELS, in about
    4/3 L H T^2 bytes. labels are those of `token_labels`, or texts, which are made `visible`.
    figures has a mapping for every head, in order of layer, then head: its "layer", "head" and
    "type", and more numbers by name. Any text is shown as text: it can neither end the page's
    script nor add to its HTML.

    Raises UserError when these do not fit one another or a weight is not one of causal attention.
    """
    shape = tuple(weights.shape)
    if len(shape) != 4 or shape[2] != shape[3] or 0 in shape:
        raise UserError(f"weights are {shape}, not (layers, heads, tokens, tokens), 1 or more each")
    layers, heads, tokens, _ = shape
    if len(labels) != tokens:
        raise UserError(f"{len(labels)} labels do not fit weights of {tokens} tokens")
    if len(figures) != layers * heads:
        raise UserError(f"figures of {len(figures)} heads do not fit weights of {layers * heads}")
    for index, figure in enumerate(figures):
        given, due = (figure.get("layer"), figure.get("head")), divmod(index, heads)
        if given != due:
            raise UserError(f"figures[{index}] is of (layer, head) {given}, its place is {due}'s")

    shown = [visible(text) for text in labels]
    data = {
        "title": title,
        "layers": layers,
        "heads": heads,
        "labels": shown,
        "runs": [runs_down(label) for label in shown],
        "figures": [{name: _plain(value) for name, value in one.items()} for one in figures],
        "levels": LEVELS,
        "weights": _packed(weights),
    }
    return TEMPLATE.read_text("utf-8").replace(PLACE, _script_safe(data), 1)


def _packed(weights: Tensor) -> str:
    """What each query sees, row after row without its future, as little-endian uint16 in base64."""
    values = weights.detach().float().cpu().numpy()
    low, high = values.min(), values.max()
    if not (low >= 0 and high <= 1 + 1e-3):  # NaN fails too; a row in bf16 may sum to a bit more
        raise UserError(f"weights are from {low:g} to {high:g}, not from 0 to 1")
    if np.triu(values, k=1).any():
        raise UserError("weights look at the future: above the diagonal all must be 0")
    rows, columns = np.tril_indices(values.shape[-1])
    levels = np.rint(values[..., rows, columns].clip(max=1) * LEVELS)
    return base64.b64encode(levels.astype("<u2").tobytes()).decode("ascii")


def _plain(value: Any) -> str | float | None:
    """A figure as JSON can say it, which knows no NaN and no infinity."""
    if value is None or isinstance(value, str | int):
        return value
    number = float(value)
    return number if math.isfinite(number) else None


def _script_safe(data: Mapping[str, Any]) -> str:
    """JSON, all ASCII, that no HTML parser finds a tag, an entity or a comment in."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
