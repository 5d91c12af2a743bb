"""Hostile tokenizers: each is refused in one line, soon, and without much memory."""

import base64
import copy
import json
import os
from contextlib import suppress
from pathlib import Path

import pytest
from headscope.data.tokenizer_json import PATTERNS
from hf_tokenizers import END, TEXT, make, write_folder
from tokenizers import Regex, pre_tokenizers

from headscope.conversion.tokenizer_in import read_tokenizer
from headscope.data.tokenizer import tokenizer_from_state
from headscope.errors import UserError

CONTENT = {name: json.loads(make(name).to_str()) for name in END}


def split(pattern: str) -> dict:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def replace(pattern: dict, content: str) -> dict:
    return {"type": "Replace", "pattern": pattern, "content": content}


def sequence(key: str, parts: list) -> dict:
    return {"type": "Sequence", key: parts}


def precompiled(data: bytes) -> dict:
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(data).decode()}


NESTED: dict = {"type": "NFC"}
for _ in range(200):
    NESTED = sequence("normalizers", [NESTED])

BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
HOSTILE = {
    "exponential pattern": ({"pre_tokenizer": split("(a+)+$")}, "pattern"),
    "hidden pattern": (
        {"pre_tokenizer": sequence("pretokenizers", [split("(a|a)*b")])},
        "could take forever",
    ),
    "pattern of a decoder": ({"decoder": replace({"Regex": "(x+x+)+y"}, "")}, "decoder"),
    "empty pattern": ({"normalizer": replace({"String": ""}, "")}, "pattern"),
    "two patterns": ({"normalizer": replace({"String": "a", "Regex": "(a+)+"}, "")}, "pattern"),
    "a text that grows": ({"normalizer": replace({"String": "a"}, "aa")}, "longer"),
    "a long prefix": ({"normalizer": {"type": "Prepend", "prepend": "a" * 10**6}}, "Prepend"),
    "many parts": ({"normalizer": sequence("normalizers", [{"type": "NFC"}] * 99)}, "more than"),
    "nested parts": ({"normalizer": NESTED}, "normalizer has the type"),
    "unknown part": ({"pre_tokenizer": {"type": "FixedLength", "length": 0}}, "FixedLength"),
    "no type": ({"pre_tokenizer": {"pattern": {"Regex": "(a+)+$"}}}, "type None"),
    "a list": ({"normalizer": [1]}, "normalizer has the type"),
    "a huge table": ({"normalizer": precompiled(b"\xff\xff\xff\x7f" + bytes(9))}, "table"),
    "bytes of bytes": (
        {"normalizer": sequence("normalizers", [{"type": "ByteLevel"}] * 30)},
        "two parts of the type ByteLevel",
    ),
    "more bytes of bytes": (
        {"pre_tokenizer": sequence("pretokenizers", [BYTES] * 30)},
        "two parts of the type ByteLevel",
    ),
    "more cut off than there is": (
        {"decoder": {"type": "Strip", "content": "a", "start": 0, "stop": 10**18}},
        "stop=1000",
    ),
    "no table": ({"normalizer": precompiled(b"")}, "table"),
    "a table that writes much": (
        {"normalizer": precompiled(bytes(4) + b"a" * 1000 + b"\0")},
        "much longer",
    ),
    "two tables": (
        {"normalizer": sequence("normalizers", [precompiled(bytes(4))] * 2)},
        "two parts",
    ),
    "long token": ({"added_tokens": [{"id": 5, "content": "a" * 10**5}]}, "token"),
    "added tokens": ({"added_tokens": 3}, "added_tokens"),
    "an id far away": ({"model": {"type": "WordLevel", "vocab": {"a": 2**31}}}, "numbered below"),
    "no vocabulary": ({"model": {"type": "BPE", "vocab": {}, "merges": []}}, "no vocabulary"),
    "no model": ({"model": None}, "model has the type None"),
    "random tokens": ({"model": CONTENT["llama3"]["model"] | {"dropout": 0.5}}, "dropout"),
    "merges of nothing": (
        {"model": CONTENT["llama3"]["model"] | {"merges": [["zz", "qq"]]}},
        "cannot be used",
    ),
    "scores": ({"model": {"type": "Unigram", "unk_id": 0, "vocab": [["a"]]}}, "scores"),
    "unknown far away": ({"model": {"type": "Unigram", "unk_id": 9, "vocab": [["a", 0.0]]}}, None),
    "long words": (
        {"model": CONTENT["word_piece"]["model"] | {"max_input_chars_per_word": 10**9}},
        "max_input_chars_per_word",
    ),
    "long prefix": (
        {"model": CONTENT["word_piece"]["model"] | {"continuing_subword_prefix": "x" * 10**6}},
        "prefix or suffix",
    ),
    "a prefix that merges lack": (
        {"model": CONTENT["llama3"]["model"] | {"continuing_subword_prefix": "####"}},
        "continuing_subword_prefix",
    ),
    "half a character": ({"model": {"type": "WordLevel", "vocab": {"\ud800": 0}}}, None),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_tokenizer_is_refused_in_one_line(tmp_path, kind):
    change, reason = HOSTILE[kind]
    content = copy.deepcopy(CONTENT["unigram"]) | change
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    state = {"kind": "tokenizers", "json": json.dumps(content), "end_of_text": None}
    for use in (lambda: read_tokenizer(tmp_path), lambda: tokenizer_from_state(state)):
        with pytest.raises(UserError, match=reason) as error:
            use()
        assert len(str(error.value).splitlines()) == 1
        assert len(str(error.value)) < 500


@pytest.mark.parametrize("end", [-1, 10**6, 2.0, "1", True, [0]])
def test_a_state_without_its_end_of_text_is_refused(end):
    text = json.dumps(CONTENT["unigram"])
    with pytest.raises(UserError, match="end-of-text token"):
        tokenizer_from_state({"kind": "tokenizers", "json": text, "end_of_text": end})


@pytest.mark.parametrize("text", ["", "[]", "[" * 10**5, "{", "null", "\udc80"])
def test_a_state_that_is_no_object_is_refused(text):
    with pytest.raises(UserError, match=r"tokenizer.json"):
        tokenizer_from_state({"kind": "tokenizers", "json": text, "end_of_text": None})


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("WordPiece", {"vocab": {"a": 0}, "unk_token": "[UNK]", "max_input_chars_per_word": 100}),
        ("Unigram", {"vocab": [["a", 0.0]], "unk_id": None}),
        ("WordLevel", {"vocab": {"a": 0}, "unk_token": "[UNK]"}),
    ],
)
def test_a_text_that_a_tokenizer_cannot_encode_is_an_error_in_one_line(kind, content):
    model = {"type": kind, "continuing_subword_prefix": "##", **content}
    text = json.dumps(CONTENT["unigram"] | {"model": model, "added_tokens": []})
    made = tokenizer_from_state({"kind": "tokenizers", "json": text, "end_of_text": None})
    with pytest.raises(UserError, match="cannot encode this text"):
        made.encode("xyz")


@pytest.mark.parametrize("table", [b"\xff" * 4, b"\0\0\0\x80", b"\xff\xff\xff\x7f" * 300])
def test_a_damaged_table_is_used_or_refused(table):
    normalizer = precompiled(len(table).to_bytes(4, "little") + table + b"a\0")
    text = json.dumps(CONTENT["unigram"] | {"normalizer": normalizer})
    with suppress(UserError):
        made = tokenizer_from_state({"kind": "tokenizers", "json": text, "end_of_text": None})
        made.encode("abc ﬁ 中文 \x00")


@pytest.mark.parametrize("pattern", sorted(each for each in PATTERNS if "+" in each))
def test_the_time_of_an_allowed_pattern_grows_with_the_text_alone(pattern):
    """With a time that grows with the square, one of these texts would take an hour."""
    cut = pre_tokenizers.Split(Regex(pattern), "isolated")
    size = 100_000
    for text in (" ", "a", ".", "\n", "1", "'s", " \n", ".\n"):
        cut.pre_tokenize_str(text * size + "x\n")


@pytest.mark.parametrize(
    "name", ["tokenizer.json", "tokenizer_config.json", "config.json", "special_tokens_map.json"]
)
@pytest.mark.parametrize("how", ["link", "folder", "pipe", "large", "no JSON", "list"])
def test_a_file_that_is_not_what_it_should_be_is_refused(tmp_path, name, how):
    folder = write_folder(tmp_path / "model", make("unigram"), "no such token")
    file, outside = folder / name, tmp_path / "outside.json"
    file.unlink(missing_ok=True)
    outside.write_text("{}")
    if how == "link":
        file.symlink_to(outside)
    elif how == "folder":
        file.mkdir()
    elif how == "pipe":
        os.mkfifo(file)
    elif how == "large":
        with file.open("wb") as stream:
            stream.truncate(2**30)
    else:
        file.write_text("{" if how == "no JSON" else "[1]")
    with pytest.raises(
        UserError, match=r"outside the folder|regular file|bytes|JSON|cannot be read"
    ):
        read_tokenizer(folder)


def test_a_folder_without_a_tokenizer_says_what_to_do(tmp_path):
    with pytest.raises(UserError, match=r"no tokenizer.json.*save_pretrained"):
        read_tokenizer(tmp_path)
    (tmp_path / "vocab.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match=r"vocab.txt cannot be read"):
        read_tokenizer(tmp_path)


def test_a_link_within_the_folder_is_followed(tmp_path: Path):
    folder = write_folder(tmp_path, make("unigram"), "</s>")
    (folder / "tokenizer.json").rename(folder / "other.json")
    (folder / "tokenizer.json").symlink_to("other.json")
    assert len(read_tokenizer(folder).encode(TEXT[0]))
