"""Made-up histories for tests of the attention viewer: heads that learn something over the steps.
And what the page of the viewer contains.

Shapes: L layers, H heads per layer, T tokens.
"""

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from html.parser import HTMLParser
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headscope.analysis import snapshot as module
from headscope.analysis.head_types import head_types
from headscope.analysis.headers import history, read_header
from headscope.analysis.metrics import colour_ends, head_metrics, uniform
from headscope.analysis.snapshot import Predictions, Snapshot, json_numbers

HOSTILE = "<img src=x onerror=alert(1)>"


def causal(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Attention weights (..., T, T): the visible shares, made to sum to one."""
    visible = np.tril(shares)
    return visible / visible.sum(-1, keepdims=True)


def learned(layers: int, heads: int, tokens: int) -> NDArray[np.float64]:
    """What the heads do at the end of training (L, H, T, T). They differ from one another: their
    first five look at the previous token, the first, their own, those nearby, and all alike."""
    own, before, all_alike = np.eye(tokens), np.eye(tokens, k=-1), np.ones((tokens, tokens))
    first = 1 + 2 * own
    first[:, 0] = 1000
    nearby = np.exp(-np.abs(np.subtract.outer(np.arange(tokens), np.arange(tokens))) / 2)
    kinds = [0.1 * own + 0.9 * before, first, own + 0.2 * causal(all_alike), nearby, all_alike]
    count = layers * heads
    weights = causal(np.stack([kinds[number % 5] for number in range(count)]))
    random = causal(np.random.default_rng(0).random((count, tokens, tokens)) ** 8 + 1e-9)
    share = np.linspace(0, 0.6, count)[:, None, None]
    return ((1 - share) * weights + share * random).reshape(layers, heads, tokens, tokens)


def weights_at(step: int, last: int, weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """The weights after `step` steps: from uniform attention to `weights`. Head n starts later
    than head n - 1."""
    start = np.linspace(0.15, 0.6, weights[..., 0, 0].size).reshape(*weights.shape[:2], 1, 1)
    share = 1 / (1 + np.exp(-20 * (np.log1p(step) / max(np.log1p(last), 1e-9) - start)))
    return (1 - share) * causal(np.ones_like(weights)) + share * weights if last else weights


def snapshot(
    weights: NDArray[np.float64],
    labels: Sequence[str],
    step: int,
    *,
    predictions: Predictions | None = None,
    vocabulary: Sequence[str] = (),
    exact: Sequence[int] | None = None,
    examples: Sequence[Any] = (),
    **others: Any,
) -> Snapshot:
    """A snapshot. `vocabulary` has the labels of the tokens in `predictions`, and `others` replace
    what is `measured`."""
    header = measured(weights) | {"step": step, "labels": labels} | others
    shown = weights.astype(np.float32)
    made = module.snapshot(header, shown, predictions, vocabulary.__getitem__, exact)
    return made.with_json("examples", examples) if examples else made


def decoded(header: Mapping[str, Any], parts: Sequence[bytes | None]) -> dict[str, Any]:
    """The arrays of a snapshot by kind, for each part of this kind a dictionary by name, as the
    header says."""
    waiting, found = iter(parts), {}
    for kind in header["parts"]:
        found[kind["name"]] = [
            part and arrays_of(zlib.decompress(part), kind["arrays"])
            for part in (next(waiting) for _ in range(kind["count"]))
        ]
    assert next(waiting, None) is None
    return found


def arrays_of(data: bytes, described: Sequence[Any]) -> dict[str, NDArray[Any]]:
    found, at = {}, 0
    for name, dtype, shape in described:
        count = int(np.prod(shape))
        found[name] = np.frombuffer(data, f"<{dtype}", count, at).reshape(shape)
        at += found[name].nbytes
    assert at == len(data)
    return found


def uniform_metrics(tokens: int, heads: int = 1) -> dict[str, list[float]]:
    """All metrics of uniform attention on a text of `tokens` tokens, of each head."""
    found = head_metrics(uniform(torch.ones(tokens, tokens)))
    return {name: [float(value)] * heads for name, value in found.items() if name != "queries"}


def measured(weights: NDArray[np.float64]) -> dict[str, Any]:
    """Entries of a header: the metrics and the names of the heads."""
    tokens = weights.shape[-1]
    metrics = head_metrics(torch.from_numpy(weights))
    uniform = uniform_metrics(tokens, weights.shape[0] * weights.shape[1])
    heads = head_types(metrics, uniform)
    return {
        "text_tokens": tokens,
        "losses": json_numbers(np.linspace(1, 9, tokens - 1)),
        "switched": [],
        "measured_tokens": tokens,
        "measured_on": "the validation split",
        "names": [head.label for head in heads],
        "uncertain": [0] * len(heads),
        "scores": json_numbers([head.score for head in heads]),
        "ratios": json_numbers([head.ratio for head in heads]),
        "metrics": {name: json_numbers(each.flatten().tolist()) for name, each in metrics.items()},
        "uniform": uniform,
        "ends": {name: colour_ends(name, tokens) for name in uniform},
    }


def run(
    name: str = "outputs/run",
    *,
    labels: Sequence[str],
    layers: int = 2,
    heads: int = 4,
    steps: Sequence[int] = (0, 10, 100, 1000),
    weights: NDArray[np.float64] | None = None,
    text: str = "attention/text",
    predicted: Callable[[int], Predictions | None] = lambda step: None,
    **others: Any,
) -> Mapping[str, Any]:
    """A run for `attention_page`: name, text, history and parts. `weights` (L, H, T, T) are those
    of the last step. `predicted` returns the predictions at a step. `others` are arguments of
    `snapshot`."""
    last_weights = learned(layers, heads, len(labels)) if weights is None else weights
    headers, keys = [], []
    parts: dict[str, bytes] = {}
    for step in steps:
        others["predictions"] = predicted(step)
        made = snapshot(weights_at(step, steps[-1], last_weights), labels, step, **others)
        headers.append(read_header(made.blobs()[0]))
        keys.append([f"{name}/{step}/{number}" for number in range(len(made.parts))])
        parts |= {key: part for key, part in zip(keys[-1], made.parts, strict=True) if part}
    losses = [2.5 + 5.5 * 0.99**step for step in steps]
    curve = {"name": "train/loss", "steps": list(steps), "values": losses}
    return {"name": name, "text": text, "history": history(headers, keys, curve), "parts": parts}


def predictions(
    layers: int, heads: int, tokens: int, vocabulary: int, *, listed: int = 5, seed: int = 0
) -> Predictions:
    """Random predictions at all positions, with this number of tokens in the vocabulary. The
    targets follow, except that of the last position."""
    random = np.random.default_rng(seed)

    def tokens_of(*shape: int) -> NDArray[np.int64]:
        places = np.ndindex(*shape)
        rows = [random.permutation(vocabulary)[:listed] for _ in places]
        return np.array(rows).reshape(*shape, listed)

    def falling(*shape: int) -> NDArray[np.float32]:
        return -np.sort(-random.random((*shape, listed))).astype(np.float32) / listed

    return Predictions(
        positions=range(tokens),
        targets=random.integers(vocabulary, size=tokens),
        follows=np.arange(tokens) + 1 < tokens,
        tokens=tokens_of(layers + 1, tokens),
        probabilities=falling(layers + 1, tokens),
        target_probabilities=random.random((layers + 1, tokens)).astype(np.float32),
        target_pushes=random.normal(size=(layers, heads, tokens)).astype(np.float32),
        raised={
            layer: (tokens_of(heads, tokens), 4 * falling(heads, tokens)) for layer in range(layers)
        },
    )


class Elements(HTMLParser):
    """Start tags with their attributes, and comments; and the text of each script by its id."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, Any]] = [("", [])]
        self.scripts: dict[str, str] = {}
        self.feed(html)
        self.close()
        self.data = json.loads(self.scripts["data"])

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        self.tags.append((tag, attributes))

    def handle_comment(self, data: str) -> None:
        self.tags.append(("comment", []))

    def handle_data(self, data: str) -> None:
        tag, attributes = self.tags[-1]
        if tag == "script":
            name = dict(attributes).get("id", "viewer")
            self.scripts[name] = self.scripts.get(name, "") + data
