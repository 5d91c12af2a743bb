"""The part of a snapshot that shows what the model predicts after each token.

Shapes: L layers, H heads per layer, T tokens, P listed tokens.

- `labels`: a JSON list with the labels of all tokens that occur below. Indices refer to this list.
  They are uint16 if it has at most 65,536 entries, otherwise uint32.
- `lens`: indices (L + 1, T, P) of the most likely tokens and (T - 1) of those that follow in the
  text, then float16: the probabilities of the former (L + 1, T, P) and of the latter
  (L + 1, T - 1), and the pushes of all heads on the latter (L, H, T - 1).
- `pushes`, one for each layer, if they were computed: indices (H, T, P), then float16: their pushes
  (H, T, P).

All are compressed by zlib. Numbers are little-endian.
"""

import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

LABEL_CHARACTERS = 40
"""A longer label is cut."""
LISTED = 5
"""How many tokens are listed after each token, P, in models with more tokens."""


@dataclass(frozen=True)
class Predictions:
    """What a model predicts after each of T tokens, whose ids are `tokens`.

    - `lens_tokens`, `lens_probabilities` (L + 1, T, P): the most likely next tokens by the input of
      each block and by the output of the last one, the most likely first.
    - `next_probabilities` (L + 1, T - 1): the probabilities of the token that follows in the text.
    - `next_pushes` (L, H, T - 1): what each head adds to the logit of the token that follows, minus
      the mean over the vocabulary.
    - `push_tokens`, `push_values` (L, H, T, P): the tokens that each head raises most, and by how
      much, in the same unit. None if they were not computed.
    - `labels`: the printable label of each token of the vocabulary.
    """

    tokens: NDArray[np.int64]
    lens_tokens: NDArray[np.int64]
    lens_probabilities: NDArray[np.float32]
    next_probabilities: NDArray[np.float32]
    next_pushes: NDArray[np.float32]
    push_tokens: NDArray[np.int64] | None
    push_values: NDArray[np.float32] | None
    labels: Sequence[str]


def prediction_parts(found: Predictions) -> tuple[dict[str, Any], list[bytes]]:
    """The entry in the header of a snapshot, and the parts `labels`, `lens` and `pushes`. The entry
    also has the probabilities of the following tokens after the last layer, for a chart over the
    steps."""
    every = [found.tokens[1:], found.lens_tokens]
    every += [] if found.push_tokens is None else [found.push_tokens]
    used = np.unique(np.concatenate([tokens.ravel() for tokens in every]))
    labels = compact_json([shortened(found.labels[token]) for token in used.tolist()]).encode()

    def indices(tokens: NDArray[np.int64]) -> bytes:
        return np.searchsorted(used, tokens).astype(index_type(len(used))).tobytes()

    def halves(values: NDArray[np.float32]) -> bytes:
        return values.astype("<f2").tobytes()

    lens = indices(found.lens_tokens) + indices(found.tokens[1:]) + halves(found.lens_probabilities)
    parts = [labels, lens + halves(found.next_probabilities) + halves(found.next_pushes)]
    if found.push_tokens is not None and found.push_values is not None:
        layers = zip(found.push_tokens, found.push_values, strict=True)
        parts += [indices(tokens) + halves(values) for tokens, values in layers]
    entry = {
        "labels": len(used),
        "label_bytes": len(labels),
        "top": found.lens_tokens.shape[-1],
        "pushes": found.push_tokens is not None,
        "next": json_numbers(found.next_probabilities[-1]),
    }
    return entry, [zlib.compress(part, level=1) for part in parts]


def max_prediction_bytes(*, layers: int, heads: int, tokens: int, vocab_size: int) -> int:
    """An upper limit for the size in bytes of the parts without `labels` and of the entry in the
    header, before zlib."""
    places = tokens * (layers + 1 + layers * heads)  # at each, P tokens and one number
    listed = LISTED * (index_type(vocab_size).itemsize + 2)
    return places * (listed + 2) + tokens * 16 + 200


def label_bytes(labels: Sequence[str]) -> int:
    """An upper limit for the size of the part `labels` in bytes."""
    return len(compact_json([shortened(text) for text in labels]).encode())


def index_type(labels: int) -> np.dtype:
    return np.dtype("<u2" if labels <= 2**16 else "<u4")


def shortened(text: str) -> str:
    return text if len(text) <= LABEL_CHARACTERS else text[: LABEL_CHARACTERS - 1] + "…"


def compact_json(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def json_numbers(values: Iterable[float]) -> list[float | None]:
    """The values with 5 significant digits. A value that is not finite becomes None, since JSON
    has no such numbers."""
    return [float(f"{value:.5g}") if np.isfinite(value) else None for value in values]
