"""Hostile tokenizers: what the library refuses is refused in one line, and no code is run."""

import copy
import json
import os
from pathlib import Path

import pytest
from hf_tokenizers import END, TEXT, make, write_folder

from headscope.conversion.tokenizer_in import read_tokenizer
from headscope.data.tokenizer import tokenizer_from_state
from headscope.errors import UserError

pytest.importorskip("transformers", reason="needs transformers, of the dev extra")

CONTENT = {name: json.loads(make(name).to_str()) for name in END}
HOSTILE = {
    "unknown part": {"pre_tokenizer": {"type": "NoSuchPart", "length": 0}},
    "a pattern that is none": {
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated"}
    },
    "a table": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "/////w=="}},
    "an id far away": {"model": {"type": "WordLevel", "vocab": {"a": 2**31}, "unk_token": "a"}},
    "no model": {"model": None},
    "merges of nothing": {"model": CONTENT["llama3"]["model"] | {"merges": [["zz", "qq"]]}},
    "a prefix that merges lack": {
        "model": CONTENT["llama3"]["model"] | {"continuing_subword_prefix": "####"}
    },
    "added tokens": {"added_tokens": 3},
    "half a character": {"model": {"type": "WordLevel", "vocab": {"\ud800": 0}}},
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_damaged_tokenizer_is_refused_in_one_line(tmp_path, kind):
    content = copy.deepcopy(CONTENT["unigram"]) | HOSTILE[kind]
    state = {"kind": "tokenizers", "json": json.dumps(content), "end_of_text": None}
    with pytest.raises(UserError) as error:
        tokenizer_from_state(state)
    assert len(str(error.value).splitlines()) == 1
    assert len(str(error.value)) < 500
    write_folder(tmp_path, make("unigram"), "</s>")
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(UserError):
        read_tokenizer(tmp_path)


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


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", ["{", "[1]", ""])
def test_a_file_that_is_not_what_it_should_be_is_refused(tmp_path, name, content):
    folder = write_folder(tmp_path / "model", make("unigram"), "no such token")
    (folder / name).write_text(content)
    with pytest.raises(UserError, match="transformers cannot open"):
        read_tokenizer(folder)


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"has no tokenizer, none of tokenizer.json, "):
        read_tokenizer(tmp_path)


def test_code_of_a_tokenizer_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    folder = write_folder(tmp_path / "model", make("unigram"), "</s>")
    (folder / "own.py").write_text("import os; os.mkdir('attacked')")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings |= {"auto_map": {"AutoTokenizer": ["own.T", "own.T"]}, "tokenizer_class": "T"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(UserError):
        read_tokenizer(folder)
    assert not os.path.exists("attacked")
    assert len(TEXT)
