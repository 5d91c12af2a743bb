"""The format of a snapshot: what a text does to a model after one training step.

Shapes: L layers, H heads per layer, T tokens, S cells on one side of a thumbnail, N positions with
predictions, P listed tokens.

A snapshot is a header in JSON, and parts. A part has one or more arrays, one after the other,
little-endian and compressed by zlib. The entry `parts` of the header describes them: for each kind
of part its name, how many there are, and the name, dtype and shape of each array. In this order:

- `thumbnails`: `maps` (2, L, H, S, S), uint8. The first half shows the weights, and the second half
  shows the shares (see below). 255 is the weight 1.
- `weights`, one part per layer: `rest`, `peak`, `codes`, or `exact` (see `layer_arrays`).
- `labels`: `text`, the JSON list of the labels of all tokens that occur below. Arrays with tokens
  have indices of this list, uint16 if it has at most 65,536 entries, otherwise uint32.
- `lens`: `positions` (N,), and the other arrays of `Predictions` but `raised`.
- `edges`: for each head and position, `keys` (L, H, N): the key with the largest weight except the
  first token and the token itself, and `queries`: the later token with the largest weight on this
  one, uint16. `keys_weights` and `queries_weights` are these weights.
- `raised`, one part per layer, if they were computed: `tokens` and `pushes` (H, N, P).
- `examples`, one part per layer, in reports: `text`, JSON of `analysis.examples.shown_examples`.

In many heads, the first token gets nearly all weight. The viewer can take the first token out and
show the `share` of each other key: its weight divided by the sum of the weights on all keys but the
first. A plain code of 8 bits for each weight would give wrong shares if this sum is small. So a
weight is stored relative to the largest weight in its row, without the first key. The error is at
most 1/510 for a weight, and at most 1/510 for a share. Probabilities and pushes are float16. A
snapshot that is `exact` has all of them in float32.
"""

import json
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headscope.analysis.headers import FORMAT
from headscope.data.labels import visible
from headscope.errors import UserError

THUMBNAIL = 24
"""Maximum number of cells on one side of a thumbnail."""
LABEL_CHARACTERS = 40
"""A longer label is cut."""
LISTED = 5
"""How many tokens are listed at each place, P, in models with more tokens."""

Floats = NDArray[np.float32]
Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, repr=False)
class Predictions:
    """What a model predicts at N positions of a text.

    - `positions`, and `targets` (N,): the ids of the tokens that are asked about, one for each.
    - `follows` (N,): whether the target is the token that follows in the text.
    - `tokens`, `probabilities` (L + 1, N, P): the most likely next tokens by the input of each
      block and by the output of the last one, the most likely first.
    - `target_probabilities` (L + 1, N): the probabilities of the targets.
    - `target_pushes` (L, H, N): what each head adds to the target's logit, minus the mean of all.
    - `raised`, by layer: the tokens (H, N, P) that each head raises most, and by how much.
    """

    positions: Sequence[int]
    targets: NDArray[np.int64]
    follows: NDArray[np.bool_]
    tokens: NDArray[np.int64]
    probabilities: Floats
    target_probabilities: Floats
    target_pushes: Floats
    raised: Mapping[int, tuple[NDArray[np.int64], Floats]]

    def __repr__(self) -> str:
        places, layers = len(self.positions), len(self.tokens) - 1
        return f"<Predictions: at {places} positions, by {layers} layers>"


@dataclass(frozen=True)
class Snapshot:
    """A header, and the compressed parts: None for a layer that was left out."""

    header: dict[str, Any]
    parts: list[bytes | None]

    def blobs(self) -> list[bytes]:
        """The header as JSON, and the parts."""
        return [compact_json(self.header).encode(), *filter(None, self.parts)]

    def with_json(self, name: str, layers: Sequence[Any]) -> "Snapshot":
        """This snapshot with one more kind of parts: the `text` of plain data, for each layer. The
        header has one size for all, so spaces fill the shorter texts."""
        texts = [compact_json(layer).encode() for layer in layers]
        longest = max(map(len, texts))
        parts = [{"text": np.frombuffer(text.ljust(longest), "u1")} for text in texts]
        kind = {"name": name, "count": len(parts), "arrays": _described(parts[0])}
        header = self.header | {"parts": [*self.header["parts"], kind]}
        return Snapshot(header, [*self.parts, *map(_packed, parts)])


def snapshot(
    header: Mapping[str, Any],
    weights: Floats,
    predictions: Predictions | None = None,
    label_of: Callable[[int], str] = str,
    exact: Sequence[int] | None = None,
) -> Snapshot:
    """The snapshot of causal attention weights (L, H, T, T), whose rows sum to one.

    `header` has the other entries of the header, which `analysis.headers` checks: numbers,
    names and metrics of heads, and `labels`, a text for each token. `label_of` gives the label of a
    token of the vocabulary. If `exact` is given, the snapshot is exact, and has the weights and the
    raised tokens of these layers only.

    Raises UserError if the sizes do not match or if `weights` are not causal attention weights.
    """
    labels = [shortened(visible(text)) for text in header["labels"]]
    weights = _checked(weights, labels)
    layers, heads, _, _ = weights.shape
    small = np.stack([thumbnails(weights), thumbnails(shares(weights))])
    kinds: dict[str, list[Arrays | None]] = {
        "thumbnails": [{"maps": np.rint(small * 255).astype("u1")}],
        "weights": [
            layer_arrays(layer, exact is not None) if exact is None or number in exact else None
            for number, layer in enumerate(weights)
        ],
    }
    if predictions:
        kinds |= prediction_arrays(predictions, label_of, layers, exact)
        kinds["edges"] = [edge_arrays(weights, predictions.positions, exact is not None)]
    kinds = {name: parts for name, parts in kinds.items() if any(parts)}
    described = [
        {"name": name, "count": len(parts), "arrays": _described(next(filter(None, parts)))}
        for name, parts in kinds.items()
    ]
    target = [] if predictions is None else predictions.target_probabilities[-1].tolist()
    sizes = {"format": FORMAT, "layers": layers, "heads": heads}
    nothing = {"switched": [], "held": [0] * (layers * heads), "descriptions": {}}
    last = {"labels": labels, "next": json_numbers(target), "parts": described}
    packed = [_packed(part) if part else None for parts in kinds.values() for part in parts]
    return Snapshot({**sizes, **nothing, **header, **last}, packed)


def _described(arrays: Arrays) -> list[list[Any]]:
    return [[name, array.dtype.str[1:], list(array.shape)] for name, array in arrays.items()]


def _packed(arrays: Arrays) -> bytes:
    return zlib.compress(b"".join(array.tobytes() for array in arrays.values()), level=1)


def layer_arrays(weights: Floats, exact: bool) -> Arrays:
    """The weights (H, T, T) of one layer: `exact`, float32 (H, T (T + 1) / 2), row by row, for the
    keys 0 to t of each query t. Or:

    - `rest`: float32 (H, T), the sum of the weights of each query on all keys but the first.
    - `peak`: float32 (H, T), the largest of these weights.
    - `codes`: uint8 (H, T (T - 1) / 2), row by row, for the keys 1 to t of each query t.

    The weight on the first key is 1 - rest. The weight on another key is code / 255 * peak.
    """
    if exact:
        queries, keys = np.tril_indices(weights.shape[-1])
        return {"exact": weights[:, queries, keys].astype("<f4")}
    others = weights[..., 1:]
    rest, peak = others.sum(axis=-1), others.max(axis=-1, initial=0)
    relative = others / np.where(peak > 0, peak, 1)[..., None]
    queries, keys = np.tril_indices(weights.shape[-1], k=-1)
    # Row 1 of the lower triangle belongs to query 1, which sees key 1 in column 0 of `others`.
    codes = np.rint(relative[:, queries, keys] * 255).astype("u1")
    return {"rest": rest.astype("<f4"), "peak": peak.astype("<f4"), "codes": codes}


def prediction_arrays(
    predictions: Predictions,
    label_of: Callable[[int], str],
    layers: int,
    exact: Sequence[int] | None,
) -> dict[str, list[Arrays | None]]:
    """The parts `labels`, `lens` and `raised`."""
    listed = [tokens for tokens, _ in predictions.raised.values()]
    listed += [predictions.targets, predictions.tokens]
    used = np.unique(np.concatenate([tokens.ravel() for tokens in listed]))
    text = compact_json([shortened(label_of(token)) for token in used.tolist()]).encode()
    real = "<f2" if exact is None else "<f4"

    def indices(tokens: NDArray[np.int64]) -> NDArray[Any]:
        return np.searchsorted(used, tokens).astype(index_type(len(used)))

    raised: dict[int, Arrays] = {
        layer: {"tokens": indices(tokens), "pushes": pushes.astype(real)}
        for layer, (tokens, pushes) in predictions.raised.items()
    }
    lens = {
        "positions": np.asarray(predictions.positions, "<u4"),
        "targets": indices(predictions.targets),
        "follows": predictions.follows.astype("u1"),
        "tokens": indices(predictions.tokens),
        "probabilities": predictions.probabilities.astype(real),
        "target_probabilities": predictions.target_probabilities.astype(real),
        "target_pushes": predictions.target_pushes.astype(real),
    }
    every_raised = [raised.get(layer) for layer in range(layers)]  # left out if all are None
    return {"labels": [{"text": np.frombuffer(text, "u1")}], "lens": [lens], "raised": every_raised}


def edge_arrays(weights: Floats, positions: Sequence[int], exact: bool) -> Arrays:
    """The part `edges` of weights (L, H, T, T)."""
    every, arrays = np.arange(len(positions)), {}
    for name in ("keys", "queries"):
        places, strongest = [], []
        for layer in weights:
            rows = (layer if name == "keys" else layer.mT)[:, positions].copy()  # (H, N, T)
            rows[:, every, positions] = 0
            if name == "keys":
                rows[..., 0] = 0
            places.append(rows.argmax(axis=-1))
            strongest.append(rows.max(axis=-1))
        arrays[name] = np.stack(places).astype("<u2")
        arrays[f"{name}_weights"] = np.stack(strongest).astype("<f4" if exact else "<f2")
    return arrays


def shares(weights: Floats) -> Floats:
    """The weights without the first key, divided by their sum. A row without other weight is 0."""
    others = weights.copy()
    others[..., 0] = 0
    total = others.sum(axis=-1, keepdims=True)
    return np.divide(others, total, out=np.zeros_like(others), where=total > 0)


def thumbnails(weights: Floats) -> Floats:
    """Reduces maps (..., T, T) to (..., S, S), S = min(T, THUMBNAIL). A cell shows the largest
    weight in the square that it covers, so that narrow lines stay visible."""
    tokens = weights.shape[-1]
    edges = np.linspace(0, tokens, min(tokens, THUMBNAIL) + 1).astype(int)[:-1]
    return np.maximum.reduceat(np.maximum.reduceat(weights, edges, axis=-1), edges, axis=-2)


def tokens_within(
    limit: int, *, layers: int, heads: int, tokens: int, vocabulary: Sequence[str]
) -> int:
    """The largest number of tokens, from 0 to `tokens`, whose snapshot needs at most `limit` bytes.
    `vocabulary` contains the labels of all tokens."""
    labels = len(compact_json([shortened(text) for text in vocabulary]).encode())
    while tokens and max_bytes(layers, heads, tokens, len(vocabulary), labels) > limit:
        tokens -= 1
    return tokens


def max_bytes(layers: int, heads: int, tokens: int, vocab_size: int, label_bytes: int) -> int:
    """An upper limit for the size of a snapshot in bytes. `label_bytes` is the size of the labels
    of the vocabulary. zlib adds at most 1/1000 and 64 bytes to data that it cannot compress."""
    cells = min(tokens, THUMBNAIL) ** 2
    maps = layers * heads * (2 * cells + 8 * tokens + tokens * (tokens - 1) // 2)
    places = tokens * (layers + 1 + layers * heads)  # at each, P tokens and one number
    listed = LISTED * (index_type(vocab_size).itemsize + 2)
    edges = layers * heads * tokens * 8
    data = maps + edges + label_bytes + places * (listed + 2) + tokens * 9
    header = 8192 + tokens * (4 * LABEL_CHARACTERS + 40) + layers * (heads + 1) * 512
    return header + data + data // 1000 + 64 * (2 * layers + 4)


def index_type(labels: int) -> np.dtype:
    return np.dtype("<u2" if labels <= 2**16 else "<u4")


def shortened(text: str) -> str:
    return text if len(text) <= LABEL_CHARACTERS else text[: LABEL_CHARACTERS - 1] + "…"


def compact_json(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def json_numbers(values: Iterable[float]) -> list[float | None]:
    """The values with 5 significant digits, or None for NaN and infinity, which JSON lacks."""
    return [float(f"{value:.5g}") if np.isfinite(value) else None for value in values]


def _checked(weights: Floats, labels: Sequence[str]) -> Floats:
    """The weights with rows that sum to exactly one, since those of bf16 may not."""
    shape = weights.shape
    if len(shape) != 4 or shape[2] != shape[3] or 0 in shape:
        right = "(layers, heads, tokens, tokens), each at least 1"
        raise UserError(f"weights have the shape {shape}: it must be {right}")
    if len(labels) != shape[2]:
        raise UserError(f"{len(labels)} labels, but weights of {shape[2]} tokens: give one each")
    low, high = weights.min(), weights.max()
    if not (low >= 0 and high <= 1.01):  # also finds NaN; bf16 may round to above 1
        raise UserError(f"weights range from {low:g} to {high:g}: they must be from 0 to 1")
    if np.triu(weights, k=1).any():
        raise UserError("weights attend to future tokens: they must be 0 above the diagonal")
    sums = weights.sum(axis=-1, keepdims=True)
    if not np.allclose(sums, 1, atol=0.02):
        advice = "give weights after the softmax, or train with callbacks=plain"
        raise UserError(f"weights have rows that do not sum to one: {advice}")
    return weights / sums
