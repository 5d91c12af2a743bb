"""The laws of snapshots: how exact the stored weights are, and how large a snapshot can be."""

import json
import zlib
from dataclasses import replace

import numpy as np
import pytest
from viewer_data import causal, measured, predictions, snapshot

from headscope.viewer.history import parts_of as number_of_parts
from headscope.viewer.history import read_header
from headscope.viewer.predictions import label_bytes
from headscope.viewer.snapshot import (
    LABEL_CHARACTERS,
    THUMBNAIL,
    max_bytes,
    shares,
    snapshot_parts,
    tokens_within,
)


def weights_of(kind: str, tokens: int = 70) -> np.ndarray:
    """Weights (2, 3, T, T) of six heads of one kind."""
    random = np.random.default_rng(0)
    scores = random.normal(size=(2, 3, tokens, tokens))
    sink = 9.5 * (np.arange(tokens) == 0)  # gives the first token about 0.99
    kinds = {
        "soft": scores,
        "sharp": 20 * scores,
        "sink": np.where(sink > 0, sink, scores),
        "strong sink": scores + 3 * sink,
        "uniform": 0 * scores,
        "incompressible": np.log(random.random(scores.shape) + 1e-9),
    }
    if kind == "bf16":  # rows do not sum to one, and are normalized
        return (weights_of("soft", tokens).view(np.uint32) & 0xFFFF0000).view(np.float32)
    return causal(np.exp(kinds[kind])).astype(np.float32)


def parts_of(weights: np.ndarray, labels: list[str] | None = None, **changes) -> list[bytes]:
    return snapshot(weights, labels or ["a"] * weights.shape[-1], step=7, **changes)


def decoded(part: bytes, heads: int, tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """The weights and the shares (H, T, T), as the docstring of `layer_part` says."""
    raw = zlib.decompress(part)
    numbers = np.frombuffer(raw, "<f4", count=2 * heads * tokens).reshape(2, heads, tokens)
    rest, peak = numbers.astype(np.float64)
    codes = np.frombuffer(raw, np.uint8, offset=8 * heads * tokens).reshape(heads, -1)
    others = np.zeros((heads, tokens, tokens))
    position = 0
    for query in range(1, tokens):
        row = codes[:, position : position + query]
        others[:, query, 1 : query + 1] = row / 255 * peak[:, query, None]
        position += query
    assert position == codes.shape[1]
    weights = others.copy()
    weights[..., 0] = 1 - rest
    return weights, np.divide(
        others, rest[..., None], out=np.zeros_like(others), where=rest[..., None] > 0
    )


@pytest.mark.parametrize("kind", ["soft", "sharp", "sink", "strong sink", "uniform", "bf16"])
def test_weights_and_shares_are_exact_enough(kind):
    weights = weights_of(kind)
    assert kind != "sink" or weights[..., 20:, 0].mean() > 0.98
    parts, sums = parts_of(weights), weights.sum(axis=-1, keepdims=True)
    assert (np.abs(sums - 1).max() > 1e-3) == (kind == "bf16")
    weights /= sums
    for layer, part in zip(weights, parts[2:], strict=True):
        found, found_shares = decoded(part, 3, 70)
        assert np.abs(found - layer).max() <= 0.002
        without = layer.astype(np.float64)
        without[..., 0] = 0
        total = without.sum(axis=-1, keepdims=True)
        expected = np.divide(without, total, out=np.zeros_like(without), where=total > 0)
        assert np.abs(found_shares - expected).max() <= 0.01
        assert np.abs(shares(layer) - expected).max() <= 1e-4


@pytest.mark.parametrize("tokens", [1, 2, 9, THUMBNAIL, 25, 70])
def test_a_thumbnail_shows_the_largest_weight_of_each_cell(tokens):
    weights = weights_of("sharp", tokens)
    side = min(tokens, THUMBNAIL)
    raw = np.frombuffer(zlib.decompress(parts_of(weights)[1]), np.uint8)
    small = raw.reshape(2, 2, 3, side, side) / 255
    for half, whole in zip(small, (weights, shares(weights)), strict=True):
        edges = [tokens * cell // side for cell in range(side + 1)]
        for row in range(side):
            for column in range(side):
                cell = whole[..., edges[row] : edges[row + 1], edges[column] : edges[column + 1]]
                assert np.abs(half[..., row, column] - cell.max(axis=(-2, -1))).max() <= 0.002


@pytest.mark.parametrize(
    ("kind", "tokens"), [("soft", 1), ("soft", 200), ("uniform", 30), ("incompressible", 150)]
)
def test_no_snapshot_is_larger_than_its_limit(kind, tokens):
    many = {f"figure_{number}": [0.12345] * 6 for number in range(20)}
    parts = parts_of(
        weights_of(kind, tokens),
        labels=["\U0001f600" * 100] * tokens,
        metrics=many,
        uniform=dict.fromkeys(many, 0.12345),
        ends=dict.fromkeys(many, (0.0, 12345.0)),
        names=["previous-token"] * 6,
    )
    limit = max_bytes(layers=2, heads=3, tokens=tokens)
    assert sum(map(len, parts)) <= limit
    assert tokens_within(limit, layers=2, heads=3, tokens=1000) == tokens
    assert tokens_within(limit - 1, layers=2, heads=3, tokens=1000) == tokens - 1
    if kind == "incompressible":
        raw = 6 * (8 * tokens + tokens * (tokens - 1) // 2)
        assert sum(map(len, parts[2:])) > 0.9 * raw


def test_labels_are_visible_and_cut_and_numbers_that_json_cannot_hold_are_null():
    metrics = {"self": [float("nan"), float("inf"), 1 / 3, 0.0, 1e-9, 1.0]}
    labels = ["\n", "a" * 100, "\x07", "<b>"]
    header = json.loads(parts_of(weights_of("soft", 4), labels=labels, metrics=metrics)[0])
    assert header["metrics"]["self"] == [None, None, 0.33333, 0.0, 1e-9, 1.0]
    assert header["labels"][::2] == ["⏎", "U+0007"]
    assert len(header["labels"][1]) == LABEL_CHARACTERS
    assert header["labels"][3] == "<b>"


def test_what_is_no_causal_attention_is_refused():
    weights = weights_of("soft", 5)
    for changed, problem in (
        (weights[..., :-1], "shape"),
        (weights.transpose(0, 1, 3, 2), "future"),
        (weights * 2, "from 0 to 1"),
        (weights * np.nan, "from 0 to 1"),
        (weights * 0.5, "sum to one"),
    ):
        with pytest.raises(ValueError, match=problem):
            snapshot_parts(changed, step=0, labels=["a"] * 5, **measured(weights))
    with pytest.raises(ValueError, match="3 labels do not match weights of 5 tokens"):
        parts_of(weights, labels=["a"] * 3)


@pytest.mark.parametrize(("vocabulary", "pushes"), [(7, True), (70_000, True), (7, False)])
def test_predictions_are_read_back_as_their_format_says(vocabulary, pushes):
    labels = ["a" * 60, *(f"t{number}" for number in range(vocabulary - 1))]
    given = predictions(2, 3, 9, labels)
    if not pushes:
        given = replace(given, push_tokens=None, push_values=None)
    header, *parts = parts_of(weights_of("soft", 9), predictions=given)
    read = read_header(header)
    entry = read["predictions"]
    assert len(parts) == number_of_parts(read) == 1 + 2 + 2 + 2 * pushes
    names, lens, *layers = (zlib.decompress(part) for part in parts[3:])
    assert len(names) == entry["label_bytes"]
    names = json.loads(names)
    assert len(names) == entry["labels"]
    assert all(len(name) <= LABEL_CHARACTERS for name in names)
    shown = np.array(
        [label[: LABEL_CHARACTERS - 1] + "…" if len(label) > 40 else label for label in labels]
    )

    def read_back(raw, tokens, *others):
        count = tokens.size
        indices = np.frombuffer(raw, "<u2", count=count)
        assert (np.array(names)[indices] == shown[tokens.ravel()]).all()
        numbers = np.frombuffer(raw, "<f2", offset=2 * count)
        expected = np.concatenate([each.ravel() for each in others])
        np.testing.assert_array_equal(numbers, expected.astype(np.float16))

    read_back(
        lens,
        np.concatenate([given.lens_tokens.ravel(), given.tokens[1:]]),
        *(given.lens_probabilities, given.next_probabilities, given.next_pushes),
    )
    for layer, raw in enumerate(layers):
        read_back(raw, given.push_tokens[layer], given.push_values[layer])
    assert entry["next"] == pytest.approx(given.next_probabilities[-1].tolist(), rel=1e-4)


def test_more_labels_than_16_bits_can_count_have_indices_of_32_bits():
    layers, heads, tokens = 1, 200, 70
    given = predictions(layers, heads, tokens, ["x"] * 20)
    first = np.arange(2 * tokens * 5).reshape(2, tokens, 5)
    second = first.max() + 1 + np.arange(heads * tokens * 5).reshape(1, heads, tokens, 5)
    labels = [f"{number:x}" for number in range(second.max() + 1)]
    given = replace(given, lens_tokens=first, push_tokens=second, labels=labels)
    weights = np.broadcast_to(weights_of("soft", tokens)[:1, :1], (1, heads, tokens, tokens))
    _, *parts = parts_of(weights, predictions=given)
    names, lens, pushes = (zlib.decompress(part) for part in parts[-3:])
    assert json.loads(names) == labels
    for raw, tokens_of in ((lens, first), (pushes, second)):
        np.testing.assert_array_equal(
            np.frombuffer(raw, "<u4", count=tokens_of.size), tokens_of.ravel()
        )


def test_a_snapshot_with_predictions_is_not_larger_than_its_limit():
    for tokens, vocabulary in ((1, 3), (40, 300), (70, 70_000)):
        labels = [f"{number:x}é" for number in range(vocabulary)]
        given = predictions(2, 3, tokens, labels, listed=min(5, vocabulary))
        parts = parts_of(weights_of("incompressible", tokens), predictions=given)
        sizes = {"layers": 2, "heads": 3, "tokens": tokens, "vocab_size": vocabulary}
        assert sum(map(len, parts)) <= max_bytes(**sizes, label_size=label_bytes(labels))
