"""Headers from strangers are checked, and headers of one run become a history."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from viewer_data import causal, snapshot

from headscope.viewer.history import MAX_TOKENS, HeaderError, history, read_header

WEIGHTS = causal(np.ones((1, 2, 2, 2)))  # of a layer with two heads, for two tokens
GOOD = json.loads(snapshot(WEIGHTS, ["a", "<b>"], step=5)[0])
GOOD |= {"scores": [0.5, None], "ratios": [1, 0.0]}
PREDICTIONS = {"labels": 3, "label_bytes": 20, "top": 2, "pushes": True, "next": [0.5]}
MANY = {str(number): [0, 0] for number in range(200)}
BAD = {
    "format": (0, 1, None),
    "step": (-1, 1.5, True, 2**60),
    "layers": (0, 5000),
    "labels": ([], "ab", ["a", 1], ["a" * 1000, "b"], ["a"] * (MAX_TOKENS + 1)),
    "text_tokens": ("3",),
    "measured_tokens": ("3", -1),
    "names": (["self"], ["self", None]),
    "scores": ([0.5], [0.5, "1"], [0.5, True], [0.5, float("nan")]),
    "ratios": ([1e308, 0],),
    "metrics": ([], {"self": [1]}, {"self": {"0": 1}}, {"x" * 300: [0, 0]}, MANY),
    "uniform": ({"self": [1]},),
    "ends": ({"self": [0]},),
    "predictions": (
        [],
        {},
        *(PREDICTIONS | {"labels": 0}, PREDICTIONS | {"labels": 2**30}),
        *(PREDICTIONS | {"label_bytes": "9"}, PREDICTIONS | {"top": 1000}),
        *(PREDICTIONS | {"pushes": 1}, PREDICTIONS | {"next": []}, PREDICTIONS | {"next": ["x"]}),
    ),
}


def header(**changes) -> dict:
    return read_header(json.dumps(GOOD | changes).encode())


def test_a_good_header_is_read_and_unknown_entries_are_dropped():
    assert header(extra="x" * 1000) == {k: v for k, v in GOOD.items() if k != "format"}


def test_a_bad_header_is_refused():
    changed = [GOOD | {key: value} for key, values in BAD.items() for value in values]
    needed = GOOD.keys() - {"predictions"}
    missing = [{k: v for k, v in GOOD.items() if k != name} for name in needed]
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


@settings(max_examples=300)
@given(name=st.sampled_from(list(GOOD)), value=JSON)
def test_any_value_at_any_place_is_read_or_refused(name, value):
    try:
        found = header(**{name: value})
    except HeaderError:
        return
    json.dumps(found, allow_nan=False)  # what the viewer gets is always valid JSON


def test_a_history_has_the_steps_in_order_and_the_last_of_two_equal_steps():
    """A snapshot of another text or without all its parts is left out."""
    headers = [
        *(header(step=step, scores=[step / 10, 0]) for step in (0, 4, 2)),
        header(step=1, labels=["x", "y"]),
        header(step=3),
        header(step=4, scores=[0.9, 0]),
    ]
    keys = [["a", "b"], ["c", "d"], ["e", "f"], ["i", "j"], ["k"], ["g", "h"]]
    loss = {"name": "train/loss", "steps": [1], "values": [2.0]}
    found = history(headers, keys, loss)
    assert [step["step"] for step in found["steps"]] == [0, 2, 4]
    last = found["steps"][-1]
    assert (last["scores"], last["parts"]) == ([0.9, 0], ["g", "h"])
    assert (found["loss"], found["labels"]) == (loss, ["a", "<b>"])
    assert "names" not in found
