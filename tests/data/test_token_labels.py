"""Labels of tokens: every character can be seen, and the bytes of a split one name it."""

import re

import pytest
from chinese import TEXT
from hypothesis import given
from hypothesis import strategies as st

from headscope.data.labels import token_labels, visible
from headscope.data.tokenizer import Tokenizer, bpe, byte, char

texts = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("多🦜é e\u0301\u200d"))


def labels_of(tokenizer: Tokenizer, text: str) -> list[str]:
    return token_labels(map(tokenizer.token_bytes, tokenizer.encode(text).tolist()))


def test_labels_of_tokens():
    for tokens, labels in (
        ([b"the", b" end"], ["the", "·end"]),
        ([b"\xe5", b"\xa4", b"\x9a"], ["多 1/3", "多 2/3", "多 3/3"]),
        ([b"\xe5\xa4", b"\x9a"], ["多 1–2/3", "多 3/3"]),  # as GPT-2 splits it
        ([b"\xe5", b"\xa4\x9a"], ["多 1/3", "多 2–3/3"]),
        ([b" \xe5\xa4", b"\x9a."], ["· 多 1–2/3", "多 3/3 ."]),
        ([b"\xe5", b"\xa4\x9a\xe8", b"\xa8\x80"], ["多 1/3", "多 2–3/3 言 1/3", "言 2–3/3"]),
        ([b"\xe5\xa4"], ["E5 A4"]),
        ([b"\x9a", b"a"], ["9A", "a"]),
        ([b"\xe5", b"a", b"\xa4\x9a"], ["E5", "a", "A4 9A"]),
        ([b"a\xff\xfeb"], ["a FF FE b"]),
        ([b"\xe5\xa4", b"", b"\x9a"], ["E5 A4", "∅", "9A"]),  # the text ends between them
        ([b"\xed", b"\xa0\x80"], ["ED", "A0 80"]),  # a surrogate is no character
        ([b"\xe3", b"\x80\x80"], ["U+3000 1/3", "U+3000 2–3/3"]),  # a space as wide as 多
        ([b"\xef\xbf\xbd"], ["U+FFFD"]),
        ([], []),
    ):
        assert token_labels(tokens) == labels


@given(texts)
def test_a_token_of_one_byte_says_which_byte_of_which_character_it_is(text):
    expected = [
        visible(each) if size == 1 else f"{visible(each)} {number}/{size}"
        for each in text
        for size in [len(each.encode())]
        for number in range(1, size + 1)
    ]
    assert labels_of(byte([]), text) == expected


@given(texts, st.lists(st.integers(1, 6), max_size=60))
def test_every_byte_of_every_character_is_told_once_however_a_text_is_split(text, lengths):
    data, tokens = text.encode(), []
    for length in lengths:
        tokens, data = [*tokens, data[:length]], data[length:]
    labels = token_labels([token for token in [*tokens, data] if token])
    told = re.findall(r"(\d)(?:–(\d))?/(\d)", " ".join(labels)) if "/" not in text else []
    place = 0
    for first, last, size in told:
        assert int(first) == place + 1
        place = int(last or first) % int(size)
    assert place == 0
    for token, label in zip([token for token in [*tokens, data] if token], labels, strict=True):
        if token.decode(errors="replace").encode() == token:
            assert label == visible(token.decode())


@given(st.binary(max_size=12), st.lists(st.binary(max_size=4), max_size=5))
def test_any_bytes_have_labels_that_can_be_seen(first, others):
    labels = token_labels([first, *others])
    assert len(labels) == 1 + len(others)
    for label in labels:
        assert "\N{REPLACEMENT CHARACTER}" not in label
        assert_can_be_seen(label)


@pytest.mark.parametrize("kind", ["char", "byte", "bpe"])
def test_chinese_is_told_by_every_tokenizer(kind):
    tokenizer = {"char": char, "byte": byte, "bpe": lambda texts: bpe(texts, vocab_size=400)}[kind](
        [TEXT]
    )
    labels = labels_of(tokenizer, TEXT)
    if kind == "char":
        assert labels == ["⏎" if each == "\n" else each for each in TEXT]
    else:
        assert "多 1/3" in labels or "多 1–2/3" in labels
    pattern = r"⏎|(. [1-3](–[1-3])?/3 ?|[^ /0-9])+"  # no byte is left without its character
    assert all(re.fullmatch(pattern, label) for label in labels)


def test_visible():
    for text, label in (
        *(("", "∅"), (" the", "·the"), ("the ", "the·"), (" ", "·"), ("a b", "a b")),
        *(("a  b", "a··b"), ("\n\n", "⏎⏎"), ("\n ", "⏎·"), ("\t\r", "\\t\\r")),
        *(("\x07", "U+0007"), ("a\x7fb", "aU+007Fb"), ("\ufffd", "U+FFFD"), ("\udc80", "U+DC80")),
        *(("\xa0\u3000", "U+00A0U+3000"), ("\u202eabc", "U+202Eabc")),
        # A joiner or an accent is shown as it is only after a character that it can change.
        *(("\u200d🚀", "U+200D🚀"), ("👩\u200d", "👩U+200D"), ("a\u200db", "aU+200Db")),
        *(("\ufe0f", "U+FE0F"), (" \u0301", "·U+0301"), ("\x07\u0301", "U+0007U+0301")),
    ):
        assert visible(text) == label
    for text in (
        "中文",
        "مرحبا",
        "नमस्ते",
        "สวัสดี",
        "👍🏽",
        "👩\u200d🚀",
        "❤\ufe0f",
        "e\u0301",
        "<b>",
    ):
        assert visible(text) == text


@given(st.text(st.characters()))
def test_a_label_can_be_seen_whole_and_stays_as_it_is(text):
    label = visible(text)
    assert_can_be_seen(label)
    assert visible(label) == label


def assert_can_be_seen(label: str) -> None:
    assert label
    assert all(character.isprintable() or character == "\u200d" for character in label)
    assert label == label.strip(" ")
    assert "  " not in label
    label.encode("utf-8")
