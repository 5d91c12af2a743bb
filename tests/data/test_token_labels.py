"""Labels of tokens: every character can be seen, and the bytes of a split one name it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headscope.data.labels import token_labels, visible


@pytest.mark.parametrize(
    ("tokens", "labels"),
    [
        ([b"the", b" end"], ["the", "·end"]),
        ([b"\xe5", b"\xa4", b"\x9a"], ["多 1/3", "多 2/3", "多 3/3"]),
        ([b"\xe5\xa4", b"\x9a"], ["多 1–2/3", "多 3/3"]),  # as GPT-2 splits it
        ([b" \xe5\xa4", b"\x9a."], ["· 多 1–2/3", "多 3/3 ."]),
        ([b"\xe5", b"\xa4\x9a\xe8", b"\xa8\x80"], ["多 1/3", "多 2–3/3 言 1/3", "言 2–3/3"]),
        ([b"\xe5\xa4"], ["E5 A4"]),
        ([b"\xe5", b"a", b"\xa4\x9a"], ["E5", "a", "A4 9A"]),
        ([b"\xe5\xa4", b"", b"\x9a"], ["E5 A4", "∅", "9A"]),  # the text ends between them
        ([b"\xed", b"\xa0\x80"], ["ED", "A0 80"]),  # a surrogate is no character
        ([b"\xef\xbf\xbd"], ["U+FFFD"]),
        ([], []),
    ],
)
def test_labels_of_tokens(tokens, labels):
    assert token_labels(tokens) == labels


def test_visible():
    for text, label in (
        *(("", "∅"), (" the", "·the"), ("a b", "a b"), ("a  b", "a··b"), ("\n ", "⏎·")),
        *(("\t\r", "\\t\\r"), ("\x07", "U+0007"), ("\ufffd", "U+FFFD"), ("\udc80", "U+DC80")),
        *(("\xa0\u3000", "U+00A0U+3000"), ("\u202eabc", "U+202Eabc")),
        # A joiner or an accent is shown as it is only after a character that it can change.
        *(("\u200d🚀", "U+200D🚀"), ("👩\u200d", "👩U+200D"), ("a\u200db", "aU+200Db")),
        *(("\ufe0f", "U+FE0F"), (" \u0301", "·U+0301"), ("\x07\u0301", "U+0007U+0301")),
    ):
        assert visible(text) == label
    unchanged = "中文 مرحبا नमस्ते สวัสดี 👍🏽 👩\u200d🚀 ❤\ufe0f e\u0301 <b>"
    assert [visible(text) for text in unchanged.split()] == unchanged.split()


@given(st.text(st.characters()), st.lists(st.binary(max_size=12), max_size=5))
def test_labels_of_any_text_and_of_any_bytes_can_be_seen_whole(text, tokens):
    labels = token_labels(tokens)
    assert len(labels) == len(tokens)
    for each in (visible(text), *labels):
        assert each
        assert "\N{REPLACEMENT CHARACTER}" not in each
        assert all(character.isprintable() or character == "\u200d" for character in each)
        assert each == each.strip(" ")
        assert "  " not in each
        each.encode("utf-8")
