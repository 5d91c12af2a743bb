"""Headers from strangers are checked, and headers of one run become a history."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from viewer_data import causal, predictions, snapshot

from headscope.show.viewer.history import (
    DTYPES,
    MAX_PART_BYTES,
    MAX_TOKENS,
    HeaderError,
    history,
    read_header,
)

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
    "uniform": ({"self": [1]},),
    "ends": ({"self": [0]},),
    "losses": ([], [1, 2], ["x"]),
    "next": ({}, ["x"], [float("inf")]),
    "switched": ("L0H1", [1], ["x" * 300]),
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
    assert header(extra="x" * 1000) == json.loads(json.dumps(expected))
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
    headers = [
        *(header(step=step, scores=[step / 10, 0], parts=parts) for step in (0, 4, 2)),
        header(step=1, labels=["x", "y"], parts=parts),
        header(step=3, parts=parts),
        header(step=4, scores=[0.9, 0], parts=[kind(), kind()], losses=[7]),
    ]
    keys = [["a", "b"], ["c", "d"], ["e", "f"], ["i", "j"], ["k"], ["g", None]]
    loss = {"name": "train/loss", "steps": [1], "values": [2.0]}
    found = history(headers, keys, loss)
    assert [step["step"] for step in found["steps"]] == [0, 2, 4]
    last = found["steps"][-1]
    assert (last["scores"], last["losses"], last["parts"]) == ([0.9, 0], [7], ["g", None])
    assert [step["layout"] for step in found["steps"]] == [parts, parts, [kind(), kind()]]
    assert (found["loss"], found["labels"]) == (loss, ["a", "<b>"])
    assert "names" not in found
