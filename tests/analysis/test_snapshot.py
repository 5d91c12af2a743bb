"""The laws of snapshots: how exact the stored weights are, and how large a snapshot can be. Headers
from strangers are checked, and headers of one run become a history."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from viewer_data import causal, decoded, predictions, snapshot

from headscope.analysis import snapshot as module
from headscope.analysis.headers import (
    DTYPES,
    MAX_PART_BYTES,
    MAX_TOKENS,
    HeaderError,
    history,
    read_header,
)
from headscope.analysis.snapshot import (
    LABEL_CHARACTERS,
    THUMBNAIL,
    Snapshot,
    compact_json,
    json_numbers,
    max_bytes,
    shares,
    tokens_within,
)
from headscope.errors import UserError


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


def made(weights: np.ndarray, labels: Sequence[str] = (), **changes: Any) -> Snapshot:
    return snapshot(weights, labels or ["a"] * weights.shape[-1], step=7, **changes)


def read(found: Snapshot) -> dict[str, Any]:
    """The arrays by kind, part and name. The header must be valid."""
    read_header(found.blobs()[0])
    return decoded(found.header, found.parts)


def weights_in(part: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The weights and the shares (H, T, T) in a part, as the docstring of `layer_arrays` says."""
    rest, peak, codes = (part[name].astype(np.float64) for name in ("rest", "peak", "codes"))
    heads, tokens = rest.shape
    queries, keys = (1 + each for each in np.tril_indices(tokens - 1))
    others = np.zeros((heads, tokens, tokens))
    others[:, queries, keys] = codes / 255 * peak[:, queries]
    weights, rest = others.copy(), rest[..., None]
    weights[..., 0] = 1 - rest[..., 0]
    return weights, np.divide(others, rest, out=np.zeros_like(others), where=rest > 0)


@pytest.mark.parametrize("kind", ["soft", "sharp", "sink", "strong sink", "uniform", "bf16"])
def test_weights_and_shares_are_exact_enough(kind):
    weights = weights_of(kind)
    assert kind != "sink" or weights[..., 20:, 0].mean() > 0.98
    sums = weights.sum(axis=-1, keepdims=True)
    assert (np.abs(sums - 1).max() > 1e-3) == (kind == "bf16")
    coded, exact = (read(made(weights, exact=each))["weights"] for each in (None, [1]))
    weights /= sums
    for layer, part in zip(weights, coded, strict=True):
        found, found_shares = weights_in(part)
        assert np.abs(found - layer).max() <= 0.002
        without = layer.astype(np.float64)
        without[..., 0] = 0
        total = without.sum(axis=-1, keepdims=True)
        expected = np.divide(without, total, out=np.zeros_like(without), where=total > 0)
        assert np.abs(found_shares - expected).max() <= 0.01
        assert np.abs(shares(layer) - expected).max() <= 1e-4
    assert exact[0] is None  # the layer was left out
    for head, row in zip(weights[1], exact[1]["exact"], strict=True):
        np.testing.assert_array_equal(head[np.tri(70, dtype=bool)], row)


def test_a_thumbnail_shows_the_largest_weight_of_each_cell():
    for tokens in (1, 2, 9, THUMBNAIL, 25, 70):
        weights, side = weights_of("sharp", tokens), min(tokens, THUMBNAIL)
        [thumbnails] = read(made(weights))["thumbnails"]
        starts = [tokens * cell // side for cell in range(side)]
        for half, whole in zip(thumbnails["maps"] / 255, (weights, shares(weights)), strict=True):
            for axis in (-2, -1):
                whole = np.maximum.reduceat(whole, starts, axis=axis)
            np.testing.assert_allclose(half, whole, rtol=0, atol=0.002)


@pytest.mark.parametrize(
    ("kind", "tokens", "vocabulary"),
    [("soft", 1, 3), ("soft", 200, 300), ("uniform", 30, 7), ("incompressible", 150, 70_000)],
)
def test_no_snapshot_is_larger_than_its_limit(kind, tokens, vocabulary):
    many = {f"figure_{number}": [0.12345] * 6 for number in range(20)}
    labels = [f"{number:x}é" for number in range(vocabulary)]
    found = made(
        weights_of(kind, tokens),
        labels=["\U0001f600" * 100] * tokens,
        predictions=predictions(2, 3, tokens, vocabulary, listed=min(5, vocabulary)),
        vocabulary=labels,
        losses=[1.2346e-5] * (tokens - 1),
        metrics=many,
        uniform={name: [0.12345, 0.12346] for name in many},
        ends=dict.fromkeys(many, (0.0, 12345.0)),
        names=["previous-token"] * 6,
    )
    sizes, size = {"layers": 2, "heads": 3}, len(compact_json(labels).encode())
    limit = max_bytes(**sizes, tokens=tokens, vocab_size=vocabulary, label_bytes=size)
    assert sum(map(len, found.blobs())) <= limit
    for less in (0, 1):
        within = tokens_within(limit - less, **sizes, tokens=tokens + 50, vocabulary=labels)
        assert within == tokens - less
    if kind == "incompressible":
        raw = 6 * (8 * tokens + tokens * (tokens - 1) // 2)
        assert sum(map(len, filter(None, found.parts[1:3]))) > 0.9 * raw


def test_labels_are_visible_and_cut_and_numbers_that_json_cannot_hold_are_null():
    found = predictions(2, 3, 4, 9)
    found.target_probabilities[-1] = [np.nan, np.inf, 1 / 3, 1e-9]
    labels = ["\n", "a" * 100, "\x07", "<b>"]
    given = {"labels": labels, "predictions": found, "vocabulary": "ab" * 9}
    header = made(weights_of("soft", 4), **given).header
    assert header["next"] == [None, None, 0.33333, 1e-9]
    assert json_numbers([-np.inf, 12345678, 0.0]) == [None, 12346000, 0.0]
    assert header["labels"][::2] == ["⏎", "U+0007"]
    assert len(header["labels"][1]) == LABEL_CHARACTERS
    assert header["labels"][3] == "<b>"
    with pytest.raises(ValueError, match="not JSON compliant"):
        made(weights_of("soft", 4), scores=[np.nan] * 6).blobs()


def test_what_is_no_causal_attention_is_refused():
    weights = weights_of("soft", 5)
    for changed, problem in (
        (weights[..., :-1], "shape"),
        (weights.transpose(0, 1, 3, 2), "future"),
        (weights * np.nan, "from 0 to 1"),
        (weights * 0.5, "sum to one"),
        (weights_of("soft", 3), "5 labels"),
    ):
        with pytest.raises(UserError, match=problem):
            module.snapshot({"labels": ["a"] * 5}, changed)


@pytest.mark.parametrize(
    ("vocabulary", "layers", "exact"),
    [(7, [0, 1], None), (70_000, [0, 1], None), (7, [], None), (7, [1], [1]), (7, [], [])],
)
def test_predictions_are_read_back_as_their_format_says(vocabulary, layers, exact):
    labels = ["a" * 60, *(f"t{number}" for number in range(vocabulary - 1))]
    whole = predictions(2, 3, 9, vocabulary)
    given = replace(whole, raised={layer: whole.raised[layer] for layer in layers})
    found = made(weights_of("soft", 9), predictions=given, vocabulary=labels, exact=exact)
    parts = read(found)
    raised = parts.get("raised", [None, None])
    assert [kind for kind, each in parts.items() if any(each)] == [*parts]  # no kind without parts
    assert len(parts["thumbnails"]) == len(parts["labels"]) == len(parts["lens"]) == 1
    assert [part is not None for part in raised] == [layer in layers for layer in (0, 1)]
    [names] = (json.loads(part["text"].tobytes()) for part in parts["labels"])
    assert sorted({*names}) == sorted(names)
    shown = np.array(["a" * (LABEL_CHARACTERS - 1) + "…", *labels[1:]])
    real, [lens] = np.float16 if exact is None else np.float32, parts["lens"]
    for name in ("probabilities", "target_probabilities", "target_pushes"):
        np.testing.assert_array_equal(lens[name], getattr(given, name).astype(real), strict=True)
    for name in ("targets", "tokens"):
        np.testing.assert_array_equal(np.array(names)[lens[name]], shown[getattr(given, name)])
    assert lens["positions"].tolist() == [*range(9)]
    assert lens["follows"].tolist() == [1] * 8 + [0]
    for layer, (tokens, pushes) in given.raised.items():
        np.testing.assert_array_equal(np.array(names)[raised[layer]["tokens"]], shown[tokens])
        np.testing.assert_array_equal(raised[layer]["pushes"], pushes.astype(real), strict=True)
    expected = given.target_probabilities[-1].tolist()
    assert found.header["next"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("exact", [None, [0]])
def test_edges_are_the_strongest_ones_besides_the_first_token_and_the_token_itself(exact):
    weights, places = weights_of("sink", tokens=9), [0, 1, 5, 8]
    given = replace(predictions(2, 3, 9, 7), positions=places)
    [found] = read(made(weights, predictions=given, vocabulary="abcdefg", exact=exact))["edges"]
    for layer, head, (number, place) in product(range(2), range(3), enumerate(places)):
        row = {key: weights[layer, head, place, key] for key in range(1, place)}
        column = {query: weights[layer, head, query, place] for query in range(place + 1, 9)}
        for name, values in (("keys", row), ("queries", column)):
            strongest = max(values, key=values.__getitem__, default=0)
            assert found[name][layer, head, number] == strongest
            weight = found[f"{name}_weights"][layer, head, number]
            assert weight == pytest.approx(values.get(strongest, 0), abs=1e-3)


def test_more_labels_than_16_bits_can_count_have_indices_of_32_bits():
    given = predictions(1, 200, 70, 20)
    second = np.arange(200 * 70 * 5).reshape(200, 70, 5)
    given = replace(given, raised={0: (second, np.zeros(second.shape, np.float32))})
    labels = [f"{number:x}" for number in range(second.size)]
    weights = weights_of("soft")[:1, :1].repeat(200, axis=1)
    parts = read(made(weights, predictions=given, vocabulary=labels))
    assert json.loads(parts["labels"][0]["text"].tobytes()) == labels
    np.testing.assert_array_equal(parts["raised"][0]["tokens"], second.astype("<u4"), strict=True)


# --- headers and histories ---

WEIGHTS = causal(np.ones((1, 2, 2, 2)))  # of a layer with two heads, for two tokens
PREDICTIONS = {"predictions": predictions(1, 2, 2, 3, listed=2), "vocabulary": "abc"}
GOOD = snapshot(WEIGHTS, ["a", "<b>"], step=5, **PREDICTIONS).header
GOOD |= {"scores": [0.5, None], "ratios": [1, 0.0], "switched": ["L0H1"]}
MANY = {str(number): [0, 0] for number in range(200)}
ARRAY = ["x", "u1", [2, 3]]


def kind(**changes: Any) -> dict[str, Any]:
    """An entry of `parts`."""
    return {"name": "x", "count": 1, "arrays": [ARRAY]} | changes


HALF = ["x", "u2", [MAX_PART_BYTES // 4 + 1]]  # two of them are too large
BAD_ARRAYS = [
    *("x", [], [ARRAY] * 9, [HALF] * 2, [{}], [ARRAY[:2]], [[*ARRAY, 1]], [[1, "u1", [2]]]),
    *([["x" * 300, "u1", [2]]], [["x", "f8", [2]]], [["x", ["u1"], [2]]], [["x", "u1", 2]]),
    *([["x", "u1", [each]]] for each in (-1, 1.5, True, "2", None, MAX_PART_BYTES + 1)),
    *([["x", "u1", shape]] for shape in ([1] * 9, [2**15, 2**15])),
]
BAD = {
    "format": (0, 1, 2, None),
    "step": (-1, 1.5, True, 2**60),
    "layers": (0, 5000),
    "labels": ([], "ab", ["a", 1], ["a" * 1000, "b"], ["a"] * (MAX_TOKENS + 1)),
    "text_tokens": ("3",),
    "measured_tokens": ("3", -1),
    "measured_on": (None, 1, "x" * 300),
    "names": (["self"], ["self", None]),
    "uncertain": ([0], [0, "1"]),
    "scores": ([0.5], [0.5, "1"], [0.5, True], [0.5, float("nan")]),
    "ratios": ([1e308, 0],),
    "metrics": ([], {"self": [1]}, {"self": {"0": 1}}, {"x" * 300: [0, 0]}, MANY),
    "uniform": ({"self": 1}, {"self": [1] * 9}),
    "descriptions": ([], {"x": 1}, {"x": "x" * 300}, dict.fromkeys(MANY, "")),
    "ends": ({"self": [0]},),
    "losses": ([], [1, 2], ["x"]),
    "next": ({}, ["x"], [float("inf")]),
    "switched": ("L0H1", [1], ["x" * 300]),
    "held": ([0], [0, "1"], None),
    "parts": (
        *({}, "x", [[]], [{}], [kind()] * 9, [kind(more=1)]),
        *([kind(name=each)] for each in (1, None, "x" * 300)),
        *([kind(count=each)] for each in (0, True, "1", 10**6)),
        *([kind(arrays=each)] for each in BAD_ARRAYS),
    ),
}


def header(**changes) -> dict:
    return read_header(json.dumps(GOOD | changes).encode())


def test_a_good_header_is_read_and_unknown_entries_are_dropped():
    expected = {"layout" if name == "parts" else name: value for name, value in GOOD.items()}
    del expected["format"]
    expected["imported"] = False  # headers before this entry do not have it
    assert header(extra="x" * 1000) == json.loads(json.dumps(expected))
    assert header(imported=True)["imported"]
    largest = [kind(arrays=[["x", "u1", [MAX_PART_BYTES]]])]
    assert header(parts=largest)["layout"] == largest


def test_a_bad_header_is_refused():
    changed = [GOOD | {key: value} for key, values in BAD.items() for value in values]
    missing = [{k: v for k, v in GOOD.items() if k != name} for name in GOOD]
    headers = [*changed, *missing, GOOD | {"layers": 100, "heads": 100}]
    not_json = [b"", b"\xff", b"[]", b"null", b"{", b"[" * 100_000, b"9" * 5000]
    for data in [*(json.dumps(each).encode() for each in headers), *not_json]:
        with pytest.raises(HeaderError):
            read_header(data)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=10,
)
ARRAYS = st.tuples(JSON | st.just("x"), JSON | st.sampled_from([*DTYPES]), JSON | st.just([2]))
KINDS = st.builds(kind, count=JSON | st.just(2), arrays=JSON | st.lists(ARRAYS, max_size=3))


@settings(max_examples=100)
@given(name=st.sampled_from([*GOOD]), value=JSON | st.lists(KINDS, max_size=3))
def test_any_value_at_any_place_is_read_or_refused(name, value):
    try:
        found = header(**{name: value})
    except HeaderError:
        return
    json.dumps(found, allow_nan=False)  # what the viewer gets is always valid JSON


def test_a_history_has_the_steps_in_order_and_the_last_of_two_equal_steps():
    """A snapshot of another text or without all its parts is left out."""
    parts = [kind(count=2)]
    limited = {"self": [0, 1], "wide": [0, 1]}
    headers = [
        *(header(step=step, scores=[step / 10, 0], parts=parts) for step in (0, 4, 2)),
        header(step=1, labels=["x", "y"], parts=parts),
        header(step=3, parts=parts),
        header(step=4, scores=[0.9, 0], parts=[kind(), kind()], losses=[7], ends=limited),
    ]
    keys = [["a", "b"], ["c", "d"], ["e", "f"], ["i", "j"], ["k"], ["g", None]]
    loss = {"name": "train/loss", "steps": [1], "values": [2.0]}
    found = history(headers, keys, loss)
    assert [step["step"] for step in found["steps"]] == [0, 2, 4]
    last = found["steps"][-1]
    assert (last["scores"], last["losses"], last["parts"]) == ([0.9, 0], [7], ["g", None])
    assert [step["layout"] for step in found["steps"]] == [parts, parts, [kind(), kind()]]
    assert found["ends"] == {"self": [0, 1]}  # those that all have
    assert (found["loss"], found["labels"]) == (loss, ["a", "<b>"])
    assert "names" not in found
