"""The laws of exported tokenizers: other libraries give the same tokens and texts."""

import json
from functools import cache

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library

from headscope.conversion.tokenizer_files import read_tokenizer, tokenizer_files
from headscope.data import tokenizer as tokenizers
from headscope.data.ranks import encoded_below, merges_of_ranks
from headscope.data.tokenizer import END_OF_TEXT, CharTokenizer
from headscope.errors import UserError

pytestmark = pytest.mark.slow

transformers = pytest.importorskip("transformers")

TEXT = "It don't matter: 12 été, 中文，中文。 one.\n\ntwo  three\t🦜 e\u0301 \r\n" * 20
texts = st.lists(
    st.text() | st.sampled_from([" don't", "  ", "\n\n", "\r\n", "中文，", "\x00", "🦜", "e\u0301"])
).map("".join)
each_tokenizer = pytest.mark.parametrize("name", ["bpe", "gpt2", "byte", "char", "plain char"])


@cache
def made(name):
    if name == "plain char":
        return CharTokenizer("".join(map(chr, range(1, 0x250))), special_tokens=False)
    return getattr(tokenizers, name)([TEXT], **{"vocab_size": 300} if name == "bpe" else {})


@cache
def files(name):
    return tokenizer_files(made(name))


@cache
def library(name):
    return Library.from_str(files(name)["tokenizer.json"])


def write(name, folder):
    for file, content in files(name).items():
        (folder / file).write_text(content, encoding="utf-8")
    return folder


def known(name, text):
    """What a tokenizer without an unknown token can encode of a text."""
    return "".join(c for c in text if "\x01" <= c < "\u0250") if name == "plain char" else text


@each_tokenizer
@settings(max_examples=60)
@given(text=texts, numbers=st.lists(st.integers(0)))
@example(text=TEXT, numbers=[])
def test_the_library_gives_our_tokens_and_our_text(name, text, numbers):
    ours, theirs, text = made(name), library(name), known(name, text)
    tokens = ours.encode(text).tolist()
    assert theirs.encode(text, add_special_tokens=False).ids == tokens
    for any_tokens in (tokens, [number % ours.vocab_size for number in numbers]):
        assert theirs.decode(any_tokens) == ours.decode(any_tokens)


@each_tokenizer
@pytest.mark.parametrize("model_type", ["gpt2", "llama"])
def test_transformers_gives_our_tokens_whatever_the_model(name, model_type, tmp_path):
    ours, folder = made(name), write(name, tmp_path)
    (folder / "config.json").write_text(f'{{"model_type": "{model_type}"}}')
    theirs = transformers.AutoTokenizer.from_pretrained(str(folder))
    for text in (TEXT, "Xyz 未知", "", " a", "\n", END_OF_TEXT[:-1]):
        text = known(name, text)
        tokens = ours.encode(text).tolist()
        assert theirs(text)["input_ids"] == tokens
        assert theirs.decode(tokens, skip_special_tokens=True) == ours.decode(tokens)
    assert theirs.eos_token_id == ours.end_of_text
    split = transformers.AutoTokenizer.from_pretrained(str(folder), split_special_tokens=True)
    text = known(name, f"a{END_OF_TEXT}b")
    assert split(text)["input_ids"] == ours.encode(text).tolist()
    if ours.end_of_text is not None:
        assert ours.end_of_text in theirs(text)["input_ids"]


def test_ranks_without_merges_are_refused():
    ranks = {bytes([value]): value for value in range(256)} | {b"abc": 256}
    assert encoded_below(b"abc", ranks, 256) == [b"a", b"b", b"c"]
    assert merges_of_ranks(ranks) is None
    with pytest.raises(ValueError, match=r"cannot be written as a tokenizer\.json"):
        tokenizer_files(tokenizers.TiktokenTokenizer("bpe", ranks))


def test_a_token_with_a_large_number_is_refused_before_the_library_writes_all_below(tmp_path):
    content = json.loads(files("char")["tokenizer.json"])
    content["model"]["vocab"]["zz"] = 2**31
    write("char", tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(UserError, match="not numbered below"):
        read_tokenizer(tmp_path)
