"""The laws of JSON: what is written, every parser reads; what is damaged counts as absent."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headscope.files import json_text, parse_json, read_json

NUMBERS = st.floats() | st.integers() | st.booleans() | st.none()
TREES = st.recursive(
    NUMBERS | st.text(), lambda parts: st.lists(parts) | st.dictionaries(st.text(), parts)
)


@given(TREES)
def test_every_number_that_is_not_finite_is_null_and_all_else_is_kept(tree):
    def expected(node):
        if isinstance(node, dict):
            return {key: expected(value) for key, value in node.items()}
        if isinstance(node, list):
            return [expected(value) for value in node]
        return None if isinstance(node, float) and not math.isfinite(node) else node

    assert json.loads(json_text(tree), parse_constant=pytest.fail) == expected(tree)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 10**5, b'{"a": NaN}', b"1" * 10**5])
def test_a_damaged_file_counts_as_absent(tmp_path, content):
    file = tmp_path / "a.json"
    assert read_json(file) is None
    file.write_bytes(content)
    assert read_json(file) is None
    with pytest.raises(ValueError, match=r"a\.json"):
        parse_json(file)
