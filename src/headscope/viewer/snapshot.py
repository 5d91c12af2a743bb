"""The format of a snapshot: the attention of all heads on one text, after one training step.

Shapes: L layers, H heads per layer, T tokens, S cells on one side of a thumbnail.

A snapshot is a list of parts:

- Part 0 is the header in JSON: step, tokens, names and metrics of the heads.
- Part 1 contains thumbnails, uint8 (2, L, H, S, S), compressed by zlib. The first half shows the
  weights, and the second half shows the shares (see below). 255 is the weight 1.
- Part 2 + n contains the weights of layer n, compressed by zlib. See `layer_part`.
- If there are predictions, their parts follow. See `headscope.viewer.predictions`.

In many heads, the first token gets nearly all weight. The viewer can take the first token out and
show the `share` of each other key: its weight divided by the sum of the weights on all keys but the
first. A plain code of 8 bits for each weight would give wrong shares if this sum is small. So a
weight is stored relative to the largest weight in its row, without the first key. The error is at
most 1/510 for a weight, and at most 1/510 for a share.
"""

import zlib
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from headscope.data.labels import visible
from headscope.errors import UserError
from headscope.viewer.predictions import (
    LABEL_CHARACTERS,
    Predictions,
    compact_json,
    json_numbers,
    label_bytes,
    max_prediction_bytes,
    prediction_parts,
    shortened,
)

FORMAT = 2
THUMBNAIL = 24
"""Maximum number of cells on one side of a thumbnail."""

Floats = NDArray[np.float32]


def snapshot_parts(
    weights: Floats,
    *,
    step: int,
    labels: Sequence[str],
    text_tokens: int,
    measured_tokens: int,
    names: Sequence[str],
    scores: Sequence[float],
    ratios: Sequence[float],
    metrics: Mapping[str, Sequence[float]],
    uniform: Mapping[str, float],
    ends: Mapping[str, tuple[float, float]],
    predictions: Predictions | None = None,
) -> list[bytes]:
    """The parts of a snapshot of causal attention weights (L, H, T, T), whose rows sum to one.

    - `labels`: a text for each token. Invisible characters are replaced by visible ones.
    - `text_tokens`: the number of tokens of the text before it was shortened to T.
    - `measured_tokens`: the number of tokens that the names and most metrics rest on.
    - `names`, `scores`, `ratios`: the label, score and ratio of the `HeadType` of each head, layer
      by layer.
    - `metrics`: the value of each metric for each head, layer by layer.
    - `uniform`, `ends`: the value of each metric for uniform attention, and the two ends of its
      axis.
    - `predictions`: what the model predicts after each token.

    Raises UserError if the sizes do not match or if `weights` are not causal attention weights.
    """
    weights = _checked(weights, labels)
    entry, more_parts = prediction_parts(predictions) if predictions else (None, [])
    layers, heads, _, _ = weights.shape
    header = {
        "format": FORMAT,
        "step": step,
        "layers": layers,
        "heads": heads,
        "labels": [shortened(visible(text)) for text in labels],
        "text_tokens": text_tokens,
        "measured_tokens": measured_tokens,
        "names": list(names),
        "scores": json_numbers(scores),
        "ratios": json_numbers(ratios),
        "metrics": {name: json_numbers(values) for name, values in metrics.items()},
        "uniform": {name: json_numbers([value])[0] for name, value in uniform.items()},
        "ends": {name: json_numbers(pair) for name, pair in ends.items()},
        "predictions": entry,
    }
    small = np.stack([thumbnails(weights), thumbnails(shares(weights))])
    return [
        compact_json(header).encode(),
        zlib.compress(np.rint(small * 255).astype(np.uint8).tobytes(), level=1),
        *(layer_part(layer) for layer in weights),
        *more_parts,
    ]


def shares(weights: Floats) -> Floats:
    """The weights without the first key, divided by their sum. A row without other weight is 0."""
    others = weights.copy()
    others[..., 0] = 0
    total = others.sum(axis=-1, keepdims=True)
    return np.divide(others, total, out=np.zeros_like(others), where=total > 0)


def layer_part(weights: Floats) -> bytes:
    """The weights (H, T, T) of one layer, compressed by zlib. The bytes contain, in this order:

    - `rest`: float32 (H, T), the sum of the weights of each query on all keys but the first.
    - `peak`: float32 (H, T), the largest of these weights.
    - codes: uint8 (H, T (T - 1) / 2), row by row, for the keys 1 to t of each query t.

    The weight on the first key is 1 - rest. The weight on another key is code / 255 * peak.
    Numbers are little-endian.
    """
    others = weights[..., 1:]
    rest, peak = others.sum(axis=-1), others.max(axis=-1, initial=0)
    relative = np.divide(
        others, peak[..., None], out=np.zeros_like(others), where=peak[..., None] > 0
    )
    queries, keys = np.tril_indices(weights.shape[-1], k=-1)
    # Row 1 of the lower triangle belongs to query 1, which sees key 1 in column 0 of `others`.
    codes = np.rint(relative[:, queries, keys] * 255).astype(np.uint8)
    raw = rest.astype("<f4").tobytes() + peak.astype("<f4").tobytes() + codes.tobytes()
    return zlib.compress(raw, level=1)


def thumbnails(weights: Floats) -> Floats:
    """Reduces maps (..., T, T) to (..., S, S), S = min(T, THUMBNAIL). A cell shows the largest
    weight in its part of the map, so that narrow lines stay visible."""
    tokens = weights.shape[-1]
    edges = np.linspace(0, tokens, min(tokens, THUMBNAIL) + 1).astype(int)[:-1]
    return np.maximum.reduceat(np.maximum.reduceat(weights, edges, axis=-1), edges, axis=-2)


def max_bytes(
    *, layers: int, heads: int, tokens: int, vocab_size: int = 0, label_size: int = 0
) -> int:
    """An upper limit for the size of a snapshot in bytes. If the snapshot has predictions,
    `vocab_size` is the number of tokens in the vocabulary, and `label_size` the size of their
    labels, `label_bytes`. zlib adds at most 1/1000 and 64 bytes to data that it cannot compress."""
    more = label_size
    if vocab_size:
        sizes = {"layers": layers, "heads": heads, "tokens": tokens}
        more += max_prediction_bytes(**sizes, vocab_size=vocab_size)
    cells = min(tokens, THUMBNAIL) ** 2
    maps = layers * heads * (2 * cells + 8 * tokens + tokens * (tokens - 1) // 2)
    header = 4096 + tokens * (4 * LABEL_CHARACTERS + 3) + layers * heads * 512
    data = maps + more
    return header + data + data // 1000 + 64 * (2 * layers + 3)


def tokens_within(
    limit: int, *, layers: int, heads: int, tokens: int, vocabulary: Sequence[str] = ()
) -> int:
    """The largest number of tokens, at most `tokens`, of a snapshot with at most `limit` bytes. 0
    if not even one token fits. `vocabulary` contains the labels of all tokens, if the snapshot has
    predictions."""
    sizes = {"layers": layers, "heads": heads, "vocab_size": len(vocabulary)}
    sizes["label_size"] = label_bytes(vocabulary) if vocabulary else 0
    while tokens and max_bytes(**sizes, tokens=tokens) > limit:
        tokens -= 1
    return tokens


def _checked(weights: Floats, labels: Sequence[str]) -> Floats:
    """The weights with rows that sum to exactly one, since those of bf16 may not."""
    shape = weights.shape
    if len(shape) != 4 or shape[2] != shape[3] or 0 in shape:
        raise UserError(
            f"weights have the shape {shape}: it must be (layers, heads, tokens, tokens), each at "
            "least 1"
        )
    if len(labels) != shape[2]:
        raise UserError(
            f"{len(labels)} labels do not match weights of {shape[2]} tokens: give one per token"
        )
    low, high = weights.min(), weights.max()
    if not (low >= 0 and high <= 1.01):  # also finds NaN; bf16 may round to above 1
        raise UserError(f"weights range from {low:g} to {high:g}: they must be from 0 to 1")
    if np.triu(weights, k=1).any():
        raise UserError("weights attend to future tokens: they must be 0 above the diagonal")
    sums = weights.sum(axis=-1, keepdims=True)
    if not np.allclose(sums, 1, atol=0.02):
        raise UserError(
            "weights have rows that do not sum to one: give weights after the softmax, or train "
            "with callbacks=plain"
        )
    return weights / sums
