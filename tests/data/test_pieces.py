"""The law of pieces: encoded one by one, they give the tokens of the whole text."""

from functools import cache

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headscope.data.corpus import LONGEST, pieces
from headscope.data.tokenizer import Tokenizer, bpe, byte, char

WORDS = [
    *("one", "don't", "it'll", "'s", ".", "12", "été", "🦜", "<|endoftext|>"),
    *(" ", "  ", "\n", "\n\n", "\t", "\r", "\u3000", "\x85", "\x1c", "\u200b"),
    *("中文", "，", "。", "ひらがな", "カタカナ", "ー", "\u3099"),
]
texts = st.lists(st.one_of(st.sampled_from(WORDS), st.text(max_size=4))).map("".join)


@cache
def tokenizer(name: str) -> Tokenizer:
    made = {"bpe": lambda: bpe(WORDS * 3, vocab_size=300), "byte": lambda: byte([])}
    return made.get(name, lambda: char(WORDS))()


@pytest.mark.parametrize("name", ["bpe", "byte", "char"])
@given(text=texts, size=st.integers(1, 20), chunk=st.integers(1, 9))
@example(text="one.\n\ntwo  three\n \n four", size=1, chunk=3)
def test_pieces_have_the_tokens_of_the_whole_text(name, text, size, chunk):
    text = text.encode(errors="ignore").decode()
    chunks = [text[start : start + chunk] for start in range(0, len(text), chunk)]
    cut = list(pieces(chunks, size=size))
    assert "".join(cut) == text
    whole = tokenizer(name).encode(text)
    parts = [tokenizer(name).encode(piece) for piece in cut]
    assert np.array_equal(np.concatenate([whole[:0], *parts]), whole)


def test_a_text_with_spaces_or_chinese_punctuation_is_cut_often():
    for text in ("word " * 10_000, "中文，" * 10_000):
        chunks = [text[start : start + 1000] for start in range(0, len(text), 1000)]
        assert max(map(len, pieces(chunks, size=2000))) < 3000


def test_a_text_without_any_place_to_cut_is_cut_at_last():
    chunk = "a" * 2**20
    found = [len(piece) for piece in pieces([chunk] * 20)]
    assert sum(found) == 20 * 2**20
    assert max(found) <= LONGEST


@pytest.mark.parametrize("char", [" ", "x", "中"])
def test_a_run_of_any_length_is_encoded(char):
    text = f"one{char * 1_500_000}two"
    made = tokenizer("bpe")
    encoded = [made.encode(piece) for piece in pieces([text])]
    assert made.decode(np.concatenate(encoded)) == text


@pytest.mark.parametrize("line", ['{"a":[1,2]}', "aGVsbG8+d29y/bGQ="])
def test_a_line_without_spaces_is_cut_between_letters_and_punctuation(line):
    assert max(map(len, pieces([line * 1000], size=100))) < 250
