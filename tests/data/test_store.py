"""The laws of the token store: it is the text, it is made once, and it is whole or not there."""

import json
import os
import signal
import subprocess
import sys
from functools import partial

import numpy as np
import pytest

from headscope.data import tokenizer as tokenizers
from headscope.data.corpus import TextFiles
from headscope.data.store import open_store, prepare_store, token_dtype

DOCUMENTS = [f"Speech {i % 9}: <|endoftext|> we'll été 中文🦜\n\n" * (1 + i) for i in range(12)]


@pytest.fixture
def corpus(tmp_path):
    folder = tmp_path / "text"
    folder.mkdir()
    for index, document in enumerate(DOCUMENTS):
        (folder / f"{index:02}.txt").write_text(document, encoding="utf-8")
    return TextFiles(path=str(folder))


@pytest.fixture
def root(tmp_path):
    return tmp_path / "not" / "yet" / "there"


def stores(root):
    """The names of what passes for whole stores."""
    return [folder.name for folder in root.iterdir() if not folder.name.startswith(".")]


def documents(tokens, tokenizer):
    """The texts between the ends of text."""
    starts = np.flatnonzero(tokens == tokenizer.end_of_text)
    assert starts[0] == 0
    return [tokenizer.decode(part[1:]) for part in np.split(tokens, starts[1:])]


@pytest.mark.parametrize(
    "make",
    [tokenizers.byte, tokenizers.char, partial(tokenizers.bpe, vocab_size=280), tokenizers.gpt2],
    ids=["byte", "char", "bpe", "gpt2"],
)
def test_a_store_is_the_text(corpus, root, make):
    store = prepare_store(corpus, make, root=root)
    train, validation = corpus.splits()
    assert documents(store.train, store.tokenizer) == list(train["text"])
    # `char` knows every character of these documents.
    assert documents(store.validation, store.tokenizer) == list(validation["text"])
    assert store.name.startswith("text-")
    fresh = make(train["text"])
    assert fresh.state() == store.tokenizer.state()


def test_a_store_that_is_there_is_not_made_again(corpus, root, monkeypatch):
    first = prepare_store(corpus, tokenizers.char, root=root)

    def read(self):
        raise AssertionError("the corpus was read again")

    monkeypatch.setattr(TextFiles, "splits", read)
    for again in (prepare_store(corpus, tokenizers.char, root=root), open_store(first.folder)):
        assert again.folder == first.folder
        assert np.array_equal(again.train, first.train)
        assert np.array_equal(again.validation, first.validation)
        assert again.tokenizer.state() == first.tokenizer.state()
    with pytest.raises(AssertionError, match="again"):
        prepare_store(corpus, tokenizers.byte, root=root)


def test_each_text_and_tokenizer_has_a_store_of_its_own(corpus, root):
    bpe = [partial(tokenizers.bpe, vocab_size=size) for size in (280, 281)]
    made = [prepare_store(corpus, make, root=root) for make in (*bpe, tokenizers.byte)]
    corpus.files[0].write_text("another text", encoding="utf-8")
    made.append(prepare_store(corpus, tokenizers.byte, root=root))
    assert sorted(stores(root)) == sorted(store.name for store in made)
    assert [store.tokenizer.vocab_size for store in made] == [280, 281, 257, 257]


@pytest.mark.parametrize(("characters", "dtype"), [(2**16 - 2, np.uint16), (2**16 - 1, np.uint32)])
def test_tokens_are_as_wide_as_the_vocabulary_needs(tmp_path, root, characters, dtype):
    text = "".join(map(chr, range(0x10000, 0x10000 + characters)))
    for name, content in (("a", text), ("b", "b")):
        (tmp_path / f"{name}.txt").write_text(content, encoding="utf-8")
    store = prepare_store(TextFiles(path=f"{tmp_path}/*.txt"), tokenizers.char, root=root)
    assert store.tokenizer.vocab_size == characters + 2  # the unknown and the end of text
    assert store.train.dtype == token_dtype(characters + 2) == dtype
    assert documents(store.train, store.tokenizer) == [text]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("split", ["train", "validation"])
def test_a_store_that_was_not_finished_is_not_there(corpus, root, error, split):
    def crash(rows, description, count):
        for index, row in enumerate(rows):
            if split in description and index == count // 2:
                raise error
            yield row

    with pytest.raises(error):
        prepare_store(corpus, tokenizers.byte, root=root, track=crash)
    assert list(root.iterdir()) == []
    assert prepare_store(corpus, tokenizers.byte, root=root).name in stores(root)


PREPARE = """
import os, signal, sys, time
from pathlib import Path
from headscope.data.corpus import TextFiles
from headscope.data.store import prepare_store
from headscope.data.tokenizer import byte

text, root, task = sys.argv[1:]

def kill(rows, description, count):
    for row in rows:
        yield row
        if "validation" in description:
            os.kill(os.getpid(), signal.SIGKILL)

def meet(rows, description, count):
    here, other = (Path(root) / f".{name}" for name in (task, {"one": "two", "two": "one"}[task]))
    here.touch()
    while not other.exists():
        time.sleep(0.01)
    return rows

store = prepare_store(
    TextFiles(path=text), byte, root=Path(root), track=kill if task == "kill" else meet
)
print(store.name, store.train.sum(), store.validation.sum())
"""


def preparing(corpus, root, task):
    """Another process that prepares a store."""
    return subprocess.Popen(
        [sys.executable, "-c", PREPARE, corpus.path, str(root), task],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def test_a_process_that_is_killed_leaves_no_store(corpus, root):
    process = preparing(corpus, root, "kill")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, errors
    assert list(root.iterdir()) != []  # it was in the middle
    assert stores(root) == []
    store = prepare_store(corpus, tokenizers.byte, root=root)
    assert len(store.train) > 0
    assert stores(root) == [store.name]


def test_two_processes_may_prepare_one_store_at_once(corpus, root):
    processes = [preparing(corpus, root, task) for task in ("one", "two")]
    (first, errors), (second, more) = (each.communicate(timeout=60) for each in processes)
    assert [each.returncode for each in processes] == [0, 0], errors + more
    store = prepare_store(corpus, tokenizers.byte, root=root)
    told = f"{store.name} {store.train.sum()} {store.validation.sum()}\n"
    assert first == second == told
    assert stores(root) == [store.name]


def test_whoever_finishes_second_uses_the_store_of_the_first(corpus, root):
    firsts = []

    def overtake(rows, description, count):
        firsts.append(prepare_store(corpus, tokenizers.byte, root=root))
        return rows

    second = prepare_store(corpus, tokenizers.byte, root=root, track=overtake)
    assert {first.folder for first in firsts} == {second.folder}
    assert list(root.iterdir()) == [second.folder]


def test_a_store_needs_a_corpus_that_can_be_read(tmp_path, root):
    (tmp_path / "a.txt").write_bytes(b"\xff")
    with pytest.raises(ValueError, match=r"a\.txt is not UTF-8"):
        prepare_store(TextFiles(path=f"{tmp_path}/a.txt"), tokenizers.byte, root=root)
    assert list(root.iterdir()) == []


@pytest.mark.parametrize("cut", [1, 2, None])
@pytest.mark.parametrize("split", ["train", "validation"])
def test_a_store_with_tokens_missing_is_an_error(corpus, root, split, cut):
    folder = prepare_store(corpus, tokenizers.byte, root=root).folder
    file = folder / f"{split}.bin"
    os.truncate(file, file.stat().st_size - cut if cut else 0)
    with pytest.raises(ValueError, match=f"{folder}.*delete it"):
        prepare_store(corpus, tokenizers.byte, root=root)


@pytest.mark.parametrize("name", ["train.bin", "validation.bin", "store.json", "tokenizer.json"])
def test_a_store_with_a_file_missing_is_an_error(corpus, root, name):
    folder = prepare_store(corpus, tokenizers.byte, root=root).folder
    (folder / name).unlink()
    with pytest.raises(ValueError, match=f"{folder}.*delete it"):
        open_store(folder)


@pytest.mark.parametrize("name", ["store.json", "tokenizer.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[]", b"{}", b"null"])
def test_a_store_with_a_broken_description_is_an_error(corpus, root, name, content):
    folder = prepare_store(corpus, tokenizers.byte, root=root).folder
    (folder / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"{folder}.*delete it"):
        open_store(folder)


@pytest.mark.parametrize(
    "change", [{"dtype": "word"}, {"dtype": "uint32"}, {"dtype": None}, {"train_tokens": 3}]
)
def test_a_store_that_is_not_as_described_is_an_error(corpus, root, change):
    folder = prepare_store(corpus, tokenizers.byte, root=root).folder
    description = json.loads((folder / "store.json").read_text())
    (folder / "store.json").write_text(json.dumps({**description, **change}))
    with pytest.raises(ValueError, match=f"{folder}.*delete it"):
        open_store(folder)
