"""All text of a corpus is in one of its splits, and the pieces of a text have its tokens."""

import hashlib
import shutil
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from corpora import every_tenth, jsonl, texts, write
from hf_tokenizers import imported
from hypothesis import example, given, settings
from hypothesis import strategies as st
from refusals import refused

from headscope.data.corpus import LONGEST, PIECE, Sotu, TinyShakespeare, pieces
from headscope.data.hub import Hub
from headscope.data.tokenizer import bpe, byte, char

# --- pieces ---

WORDS = [
    *("one", "don't", "it'll", "'s", ".", "12", "été", "🦜", "<|endoftext|>", "[SEP]"),
    *(" ", "  ", "\n", "\n\n", "\t", "\r", "\u3000", "\x85", "\x1c", "\u200b"),
    *("中文", "，", "。", "ひらがな", "カタカナ", "ー", "\u3099"),
]
MAKERS = {
    "bpe": lambda: bpe(WORDS * 3, vocab_size=300),
    "byte": lambda: byte([]),
    "char": lambda: char(WORDS),
    "word_piece": lambda: imported("word_piece"),
}


tokenizer = cache(lambda name: MAKERS[name]())


@pytest.mark.parametrize("name", MAKERS)
@settings(max_examples=60)
@given(
    text=st.lists(st.sampled_from(WORDS) | st.text(max_size=4)).map("".join),
    size=st.integers(1, 20),
    chunk=st.integers(1, 9),
)
@example(text="one.\n\ntwo  three\n \n four", size=1, chunk=3)
def test_pieces_have_the_tokens_of_the_whole_text(name, text, size, chunk):
    text = text.encode(errors="ignore").decode()
    chunks = [text[start : start + chunk] for start in range(0, len(text), chunk)]
    cut = list(pieces(chunks, size=size))
    assert "".join(cut) == text
    whole = tokenizer(name).encode(text)
    parts = [tokenizer(name).encode(piece) for piece in cut]
    assert np.array_equal(np.concatenate([whole[:0], *parts]), whole)


PLACES = ["word ", "中文，", '{"a":[1,2]}', "aGVsbG8+d29y/bGQ="]


@pytest.mark.parametrize("part", [*PLACES, " ", "x", "中"])
def test_a_long_text_is_cut_often_or_at_last(part):
    text = f"one{part * LONGEST}"[: 2 * LONGEST] + "two"
    cut = list(pieces([text]))
    assert max(map(len, cut)) < PIECE + (1000 if part in PLACES else LONGEST)
    made = tokenizer("bpe")
    assert made.decode(np.concatenate([made.encode(piece) for piece in cut])) == text


# --- the built-in texts ---


def test_sotu_holds_out_every_tenth_speech_and_notices_a_changed_one(tmp_path):
    corpus = Sotu()
    files = sorted((corpus.folder / "speeches").iterdir())
    train, validation = texts(corpus)
    assert (train, validation) == every_tenth([file.read_bytes().decode() for file in files])
    assert (len(train), len(validation)) == (225, 24)
    speech = files[0].name
    write(tmp_path / "speeches", {speech: files[0].read_bytes().replace(b"I", b"You", 1)})
    shutil.copy(corpus.folder / "manifest.json", tmp_path)
    corpus.folder = tmp_path
    with refused(speech, "reinstall"):
        texts(corpus)


def test_tiny_shakespeare_is_known_by_its_sha256(tmp_path, monkeypatch):
    text = "First Citizen:\nSpeak, speak.\n\n" * 20
    copy = str(write(tmp_path, {"input.txt": text}) / "input.txt")
    with refused("input.txt is not tiny-shakespeare: its sha256"):
        texts(TinyShakespeare(path=copy))
    with refused("nowhere cannot be read"):
        texts(TinyShakespeare(path=str(tmp_path / "nowhere")))
    monkeypatch.setattr(TinyShakespeare, "sha256", hashlib.sha256(text.encode()).hexdigest())
    monkeypatch.setattr(TinyShakespeare, "url", Path(copy).as_uri())  # the way of a download
    cut = len(text) * 9 // 10
    for corpus in (TinyShakespeare(path=copy), TinyShakespeare()):
        assert texts(corpus) == ([text[:cut]], [text[cut:]])
    monkeypatch.setattr(TinyShakespeare, "url", (tmp_path / "nowhere").as_uri())
    with refused("could not be downloaded", "data.path="):
        texts(TinyShakespeare())


# --- datasets of the hub: a folder stands for one ---

DOCUMENTS = [f"document {index}" for index in range(25)]
STORIES = [text.upper() for text in DOCUMENTS]


@pytest.fixture
def dataset(tmp_path):
    rows = [{"text": text, "story": story} for text, story in zip(DOCUMENTS, STORIES, strict=True)]
    return str(write(tmp_path / "set", {"train.jsonl": jsonl(rows)}))


def test_a_dataset_gives_the_column_and_the_slices_of_splits_that_were_asked_for(dataset):
    assert texts(Hub(name=dataset)) == every_tenth(DOCUMENTS)
    assert texts(Hub(name=dataset, column="story")) == every_tenth(STORIES)
    halves = Hub(name=dataset, train_split="train[:12]", validation_split="train[80%:]")
    assert texts(halves) == (DOCUMENTS[:12], DOCUMENTS[20:])


FORMATS = ["text", "csv", "json", "parquet", "arrow", "imagefolder"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": ""}, "data.name= is empty"),
        ({"max_tokens": 0}, "data.max_tokens=0 must be at least 1"),
        ({"column": "words"}, "has no column words; its columns: text, story"),
        ({"train_split": "test"}, 'could not be loaded: Unknown split "test"'),
        ({"train_split": "train[:1]"}, "name a data.validation_split"),
        ({"subset": "other"}, "'other' not found"),
        *(({"name": name}, f"data.name={name}") for name in FORMATS),
    ],
)
def test_a_dataset_says_what_it_has_not_and_a_format_is_no_dataset(
    dataset, options, message, tmp_path, monkeypatch
):
    monkeypatch.chdir(write(tmp_path, {f"{number}.txt": "text" for number in range(3)}))
    with refused(message):
        texts(Hub(**({"name": dataset} | options)))


def test_the_fingerprint_of_a_dataset_is_of_all_that_names_it():
    keys = ["name", "subset", "column", "template", "train_split", "validation_split", "revision"]
    changes = [{}, *({key: "{a}"} for key in keys), {"max_tokens": 7}, {"deduplicate": True}]
    made = [Hub(**({"name": "set"} | change)).fingerprint() for change in changes]
    assert len(set(made)) == len(made)
    assert Hub(name="set").fingerprint() == made[0]
