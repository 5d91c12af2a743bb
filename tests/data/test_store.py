"""The laws of the token store: it is the text, it is made once, and it is whole or not there."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest
from filelock import FileLock

from headscope.data import tokenizer as tokenizers
from headscope.data.encode import token_dtype
from headscope.data.own_files import TextFiles
from headscope.data.preparing import prepare_store
from headscope.data.store import open_store
from headscope.errors import UserError

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
    texts = {"train": [], "validation": []}
    for document in corpus.documents():
        texts[document.split].append("".join(document.pieces))
    assert documents(store.train, store.tokenizer) == texts["train"]
    # `char` knows every character of these documents.
    assert documents(store.validation, store.tokenizer) == texts["validation"]
    assert store.name.startswith("text-")
    fresh = make(texts["train"])
    assert fresh.state() == store.tokenizer.state()


def test_a_store_that_is_there_is_not_made_again(corpus, root, monkeypatch):
    first = prepare_store(corpus, tokenizers.char, root=root)

    def read(self, wanted):
        raise AssertionError("the corpus was read again")

    monkeypatch.setattr(TextFiles, "documents", read)
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
@pytest.mark.parametrize("number", [0, 1])
def test_a_store_that_was_not_finished_is_not_there(corpus, root, error, number):
    def crash(batches, size):
        for index, batch in enumerate(batches):
            if index == number:
                raise error
            yield batch
        raise error

    with pytest.raises(error):
        prepare_store(corpus, tokenizers.byte, root=root, track=crash)
    assert list(root.iterdir()) == []
    assert prepare_store(corpus, tokenizers.byte, root=root).name in stores(root)


PREPARE = """
import os, signal, sys, time
from pathlib import Path
from headscope.data.own_files import TextFiles
from headscope.data.preparing import prepare_store
from headscope.data.tokenizer import byte

text, root, task = sys.argv[1:]

def kill(batches, size):
    for batch in batches:
        yield batch
        os.kill(os.getpid(), signal.SIGKILL)

def wait(batches, size):
    (Path(root) / f".{task}").touch()
    while not (Path(root) / ".go").exists():
        time.sleep(0.01)
    return batches

store = prepare_store(
    TextFiles(path=text), byte, root=Path(root), track=kill if task == "kill" else wait,
    say=lambda line: print(line, flush=True),
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


def test_of_two_processes_the_second_waits_for_the_first(corpus, root):
    first = preparing(corpus, root, "one")
    while not (root / ".one").exists():
        assert first.poll() is None
        time.sleep(0.01)
    second = preparing(corpus, root, "two")
    assert "waiting" in second.stdout.readline()
    assert not (root / ".two").exists()  # it makes nothing itself
    (root / ".go").touch()
    (told, errors), (more, other_errors) = (
        each.communicate(timeout=60) for each in (first, second)
    )
    assert [first.returncode, second.returncode] == [0, 0], errors + other_errors
    store = prepare_store(corpus, tokenizers.byte, root=root)
    assert told == more == f"{store.name} {store.train.sum()} {store.validation.sum()}\n"
    assert stores(root) == [store.name]
    assert not list(root.glob(".preparing-*"))


def test_another_process_that_holds_the_lock_for_a_moment_does_no_harm(corpus, root):
    """A process that looks for unfinished stores locks each of them, and removes the lock file."""
    other = prepare_store(corpus, tokenizers.char, root=root)
    name = prepare_store(corpus, tokenizers.byte, root=root).name
    shutil.rmtree(root / name)
    locked = threading.Event()

    def look_and_go():
        with FileLock(root / f".preparing-{name}.lock"):
            locked.set()
            time.sleep(0.3)
            (root / f".preparing-{name}.lock").unlink()

    thread = threading.Thread(target=look_and_go)
    thread.start()
    locked.wait()
    said = []
    assert prepare_store(corpus, tokenizers.byte, root=root, say=said.append).name == name
    thread.join()
    assert said == []
    assert set(stores(root)) == {name, other.name}


def test_what_a_killed_process_was_preparing_is_removed_and_what_another_prepares_is_not(
    corpus, root
):
    process = preparing(corpus, root, "kill")
    process.communicate(timeout=60)
    (root / ".preparing-x8f3k2").mkdir()  # as earlier versions named it
    alive = root / ".preparing-other"
    alive.mkdir()
    assert len(list(root.glob(".preparing-*"))) > 2
    with FileLock(root / ".preparing-other.lock"):
        prepare_store(corpus, tokenizers.char, root=root)
    assert set(root.glob(".preparing-*")) == {alive, root / ".preparing-other.lock"}
    prepare_store(corpus, tokenizers.char, root=root)
    assert not list(root.glob(".preparing-*"))


def test_a_signal_undoes_what_is_half_made(corpus, root, monkeypatch):
    undone = []

    @contextmanager
    def on_stop(undo):
        undone.append(undo)
        yield

    def stopped(batches, size):
        assert list(root.glob(".preparing-*/"))
        undone[0]()
        assert not list(root.iterdir())
        raise RuntimeError

    monkeypatch.setattr("headscope.data.preparing.on_stop", on_stop)
    with pytest.raises(RuntimeError):
        prepare_store(corpus, tokenizers.byte, root=root, track=stopped)


def test_a_text_that_changes_while_it_is_read_makes_no_store(corpus, root):
    class Changing(TextFiles):
        def documents(self, wanted):
            yield from super().documents(wanted)
            self.files[0].write_text("changed meanwhile")

    with pytest.raises(UserError, match="changed while it was read"):
        prepare_store(Changing(path=corpus.path), tokenizers.byte, root=root)
    assert list(root.iterdir()) == []


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
    "change",
    [
        {"dtype": "word"},
        {"dtype": "uint32"},
        {"dtype": "int16"},
        {"dtype": None},
        {"train_tokens": 3},
        {"train_tokens": "7"},
        {"train_tokens": -1},
        {"train_tokens": None},
        {"train_tokens": 10**30},
        {"format": 1},
        {"format": "1"},
        {"format": True},
        {"vocab_size": 258},
        {"vocab_size": 257.0},
        {"fingerprint": "0" * 64},
        {"train_crc32": 0},
        {"train_crc32": "0"},
        {"validation_bytes": "1"},
        {"validation_bytes": 2**60},
    ],
    ids=str,
)
def test_a_store_that_is_not_as_described_is_an_error(corpus, root, change):
    folder = prepare_store(corpus, tokenizers.byte, root=root).folder
    description = json.loads((folder / "store.json").read_text())
    (folder / "store.json").write_text(json.dumps({**description, **change}))
    refused(corpus, root, folder)


def refused(corpus, root, folder, make=tokenizers.byte):
    """In one line that names the folder and says what to do."""
    with pytest.raises(UserError) as error:
        prepare_store(corpus, make, root=root)
    assert str(folder) in str(error.value)
    assert str(error.value).endswith("delete it")
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 600


@pytest.mark.parametrize("split", ["train", "validation"])
def test_a_token_outside_the_vocabulary_is_noticed(corpus, root, split, monkeypatch):
    monkeypatch.setattr("headscope.data.store.CHUNK", 100)  # several chunks of these few tokens
    folder = prepare_store(corpus, tokenizers.byte, root=root).folder
    file = folder / f"{split}.bin"
    tokens = np.fromfile(file, dtype=np.uint16)
    for place in (0, len(tokens) // 2, len(tokens) - 1):
        changed = tokens.copy()
        changed[place] = 257
        changed.tofile(file)
        refused(corpus, root, folder)
    tokens.tofile(file)
    prepare_store(corpus, tokenizers.byte, root=root)


@pytest.mark.parametrize("text", ["[" * 10**5, '{"a":' * 10**5, "1" * 10**5, '{"format": NaN}'])
@pytest.mark.parametrize("name", ["store.json", "tokenizer.json"])
def test_deep_and_odd_json_is_refused(corpus, root, name, text):
    folder = prepare_store(corpus, tokenizers.byte, root=root).folder
    (folder / name).write_text(text)
    refused(corpus, root, folder)


@pytest.mark.parametrize("name", ["store.json", "tokenizer.json", "train.bin", "validation.bin"])
def test_huge_files_pipes_and_links_are_refused(corpus, root, name):
    folder = prepare_store(corpus, tokenizers.byte, root=root).folder
    os.truncate(folder / name, 10**12)  # takes no space on the disk
    refused(corpus, root, folder)
    (folder / name).unlink()
    os.mkfifo(folder / name)
    refused(corpus, root, folder)
    (folder / name).unlink()
    (folder / name).symlink_to("/dev/zero")
    refused(corpus, root, folder)


def test_a_store_with_another_tokenizer_than_was_asked_for_is_refused(corpus, root):
    made = {
        make: prepare_store(corpus, make, root=root).folder
        for make in (tokenizers.byte, tokenizers.char, partial(tokenizers.bpe, vocab_size=280))
    }
    asked, *others = made
    for other in others:
        for file in made[asked].iterdir():
            file.write_bytes((made[other] / file.name).read_bytes())
        refused(corpus, root, made[asked])
    state = tokenizers.byte([]).state()
    stored = partial(tokenizers.stored, state=state)
    folder = prepare_store(corpus, stored, root=root).folder
    for file in folder.iterdir():
        file.write_bytes((made[tokenizers.char] / file.name).read_bytes())
    refused(corpus, root, folder, make=stored)
