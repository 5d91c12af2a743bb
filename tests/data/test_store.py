"""The laws of the token store: it is the text, it is made once, and it is whole or not there."""

import json
import os
import shutil
import subprocess
import sys
import time
import zlib
from contextlib import contextmanager
from functools import partial
from itertools import pairwise

import numpy as np
import pytest

from headscope.data import encode
from headscope.data import tokenizer as tokenizers
from headscope.data.encode import token_dtype
from headscope.data.own_files import TextFiles
from headscope.data.preparing import LOCK, PREPARING, prepare_store
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


@pytest.mark.parametrize(("error", "number"), [(RuntimeError, 1), (KeyboardInterrupt, 0)])
def test_a_store_that_was_not_finished_is_not_there(corpus, root, error, number):
    def crash(batches, size):
        for index, batch in enumerate(batches):
            if index == number:
                raise error
            yield batch
        raise error

    with pytest.raises(error):
        prepare_store(corpus, tokenizers.byte, root=root, track=crash)
    assert [path.name for path in root.iterdir()] == [LOCK]
    assert prepare_store(corpus, tokenizers.byte, root=root).name in stores(root)


def test_what_a_killed_process_left_is_removed(corpus, root):
    left = root / f"{PREPARING}another" / "train.bin"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half of it")
    store = prepare_store(corpus, tokenizers.byte, root=root)
    assert {path.name for path in root.iterdir()} == {store.name, LOCK}


PREPARE = """
import sys, time
from pathlib import Path
from headscope.data.own_files import TextFiles
from headscope.data.preparing import prepare_store
from headscope.data.tokenizer import byte

text, root, task = sys.argv[1:]

def wait(batches, size):
    (Path(root) / f".{task}").touch()
    while not (Path(root) / ".go").exists():
        time.sleep(0.01)
    return batches

store = prepare_store(
    TextFiles(path=text), byte, root=Path(root), track=wait,
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


@pytest.mark.slow
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
    assert not list(root.glob(f"{PREPARING}*"))


def test_a_signal_undoes_what_is_half_made(corpus, root, monkeypatch):
    undone = []

    @contextmanager
    def on_stop(undo):
        undone.append(undo)
        yield

    def stopped(batches, size):
        assert list(root.glob(f"{PREPARING}*/"))
        undone[0]()
        assert [path.name for path in root.iterdir()] == [LOCK]
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
    assert list(root.iterdir()) == [root / LOCK]


def damages(file, outside):
    """Files that replace `file` one after the other: a missing one, too, and none is regular."""
    content = file.read_bytes()
    outside.write_bytes(content)
    file.unlink()
    yield
    os.mkfifo(file)
    yield
    file.unlink()
    file.symlink_to(outside)
    yield
    file.unlink()
    for changed in (b"", content[:-2], content + b"  {", b"{", b"\xff", b"[]", b"{}", b"null"):
        file.write_bytes(changed)
        yield
    file.write_bytes(content)


@pytest.mark.parametrize("name", ["train.bin", "validation.bin", "store.json", "tokenizer.json"])
def test_a_damaged_store_is_refused_in_one_line(corpus, root, name):
    folder = prepare_store(corpus, tokenizers.byte, root=root).folder
    for _ in damages(folder / name, root / "outside"):
        refused(corpus, root, folder)
    prepare_store(corpus, tokenizers.byte, root=root)


CHANGES = {
    "format": [1, "3", True],
    "dtype": ["word", "uint32", "int16", None],
    "vocab_size": [258, 257.0],
    "fingerprint": ["0" * 64],
    "tokenizer_sha256": ["0" * 64],
    "train_tokens": [3, "7", -1, None, 10**30],
    "train_crc32": [0, "0", None],
    "validation_bytes": ["1", -1, 2**60, None],
}


def test_a_store_that_is_not_as_described_is_an_error(corpus, root):
    folder = prepare_store(corpus, tokenizers.byte, root=root).folder
    description = json.loads((folder / "store.json").read_text())
    for key, values in CHANGES.items():
        assert key in description
        for value in values:
            (folder / "store.json").write_text(json.dumps({**description, key: value}))
            refused(corpus, root, folder)


def refused(corpus, root, folder, make=tokenizers.byte):
    """In one line that names the folder and says what to do."""
    with pytest.raises(UserError) as error:
        prepare_store(corpus, make, root=root)
    assert str(folder) in str(error.value)
    assert str(error.value).endswith("delete it")
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 600


@pytest.mark.parametrize(("split", "place"), [("train", 0.5), ("validation", 0.999)])
def test_a_flipped_bit_and_a_token_outside_the_vocabulary_are_noticed(
    corpus, root, split, place, monkeypatch
):
    monkeypatch.setattr(encode, "CHUNK", 100)  # several chunks of these few tokens
    folder = prepare_store(corpus, tokenizers.byte, root=root).folder
    file = folder / f"{split}.bin"
    tokens, before = np.fromfile(file, dtype=np.uint16), file.stat()
    for change in (1, 512):
        changed = tokens.copy()
        changed[int(place * len(tokens))] ^= change
        changed.tofile(file)
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        refused(corpus, root, folder)
    description = json.loads((folder / "store.json").read_text())
    crc = {f"{split}_crc32": zlib.crc32(changed.tobytes())}  # a stranger can write the right one
    (folder / "store.json").write_text(json.dumps(description | crc))
    with pytest.raises(UserError, match="not in the vocabulary"):
        open_store(folder)


def test_a_store_with_another_tokenizer_than_was_asked_for_is_refused(corpus, root):
    state = tokenizers.char(["other"]).state()
    makers = [tokenizers.byte, tokenizers.char, partial(tokenizers.bpe, vocab_size=280)]
    makers += [partial(tokenizers.bpe, vocab_size=281), partial(tokenizers.stored, state=state)]
    made = {make: prepare_store(corpus, make, root=root).folder for make in makers}
    for asked, other in pairwise([*makers, makers[0]]):
        shutil.rmtree(made[asked])
        shutil.copytree(made[other], made[asked])
        refused(corpus, root, made[asked], make=asked)
        shutil.rmtree(made[asked])
        prepare_store(corpus, asked, root=root)
