"""The laws of the token store: it is made once, and it is whole or not there."""

import json
import zlib
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event

import numpy as np
import pytest
from corpora import write
from refusals import refused

from headscope.data import encode
from headscope.data import tokenizer as tokenizers
from headscope.data.own_files import TextFiles
from headscope.data.store import LOCK, open_store, prepare_store


@pytest.fixture
def corpus(tmp_path):
    files = {f"{number:02}.txt": f"Speech {number} été 中文\n" * number for number in range(1, 13)}
    return TextFiles(path=str(write(tmp_path / "text", files)))


@pytest.fixture
def root(tmp_path):
    return tmp_path / "not" / "yet" / "there"


def names(root):
    return {path.name for path in root.iterdir()}


def test_a_store_that_is_there_is_not_made_again(corpus, root, monkeypatch):
    first = prepare_store(corpus, tokenizers.char, root=root)
    monkeypatch.setattr(TextFiles, "documents", None)  # reading the corpus would be an error
    for again in (prepare_store(corpus, tokenizers.char, root=root), open_store(first.folder)):
        assert again.folder == first.folder
        assert np.array_equal(again.train, first.train)
        assert np.array_equal(again.validation, first.validation)
        assert again.tokenizer.state() == first.tokenizer.state()


def test_each_text_and_tokenizer_has_a_store_of_its_own(corpus, root):
    bpe = [partial(tokenizers.bpe, vocab_size=size) for size in (280, 281)]
    made = [prepare_store(corpus, make, root=root) for make in (*bpe, tokenizers.byte)]
    corpus.files[0].write_text("another text", encoding="utf-8")
    made.append(prepare_store(corpus, tokenizers.byte, root=root))
    assert names(root) == {LOCK, *(store.name for store in made)}
    assert [store.tokenizer.vocab_size for store in made] == [280, 281, 257, 257]


@pytest.mark.parametrize(("characters", "dtype"), [(2**16 - 2, np.uint16), (2**16 - 1, np.uint32)])
def test_tokens_are_as_wide_as_the_vocabulary_needs(tmp_path, root, characters, dtype):
    text = "".join(map(chr, range(0x10000, 0x10000 + characters)))
    corpus = TextFiles(path=str(write(tmp_path / "text", {"a.txt": text, "b.txt": "b"})))
    store = prepare_store(corpus, tokenizers.char, root=root)
    assert store.tokenizer.vocab_size == characters + 2  # the unknown and the end of text
    assert store.train.dtype == encode.token_dtype(characters + 2) == dtype
    assert store.tokenizer.decode(store.train) == text


class Changing(TextFiles):
    def documents(self, wanted):
        yield from super().documents(wanted)
        self.files[0].write_text("changed meanwhile")


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_store_that_was_not_finished_is_not_there(corpus, root, error):
    def crash(batches, size):
        yield next(batches)
        raise error

    with pytest.raises(error):
        prepare_store(corpus, tokenizers.byte, root=root, track=crash)
    with refused("changed while it was read"):
        prepare_store(Changing(path=corpus.path), tokenizers.byte, root=root)
    for file in corpus.files:
        file.write_text("the same")
    with refused("no text for the validation split"):
        prepare_store(TextFiles(path=corpus.path, deduplicate=True), tokenizers.byte, root=root)
    assert names(root) == {LOCK}


def test_of_two_that_prepare_the_same_the_second_waits_for_the_first(corpus, root):
    started, waiting = Event(), Event()

    def wait(batches, size):
        started.set()
        assert waiting.wait(60)
        return batches

    with ThreadPoolExecutor(2) as pool:  # a lock is of an open file, so threads are like processes
        prepare = partial(pool.submit, prepare_store, corpus, tokenizers.byte, root=root)
        first = prepare(track=wait)
        assert started.wait(60)
        second = prepare(track=None, say=lambda line: "waiting" in line and waiting.set())
        assert first.result().folder == second.result().folder
    assert names(root) == {first.result().name, LOCK}


@pytest.fixture
def folder(corpus, root):
    """The folder of a whole store."""
    return prepare_store(corpus, tokenizers.byte, root=root).folder


def assert_refused(corpus, folder, *words):
    with refused(folder, "delete it", *words):
        prepare_store(corpus, tokenizers.byte, root=folder.parent)


@pytest.mark.parametrize("name", ["train.bin", "validation.bin", "store.json", "checksums.json"])
def test_a_damaged_store_is_refused_in_one_line(corpus, folder, name):
    file, outside = folder / name, folder.parent / "outside"
    content = file.read_bytes()
    flipped = bytearray(content)
    flipped[len(flipped) // 2] ^= 1
    for changed in (b"", content[:-2], content + b"  {", b"\xff", b"[]", b"{}", flipped):
        file.write_bytes(changed)
        assert_refused(corpus, folder)
    file.unlink()
    assert_refused(corpus, folder)
    if name != "checksums.json":
        outside.write_bytes(content)
        file.symlink_to(outside)  # it could name any file
        assert_refused(corpus, folder, f"{name} is not a regular file")


OTHER = tokenizers.bpe(["a"], vocab_size=257).state()  # of the same size
HOSTILE = {
    "format": [1, "5", None],
    "fingerprint": ["0" * 64, None],
    "text_per_token_byte": ["1", -1.0, None, True],
    "tokenizer": [{}, OTHER | {"pattern": "(a+)+$"}, tokenizers.char(["few"]).state()],
}


@pytest.mark.parametrize("key", HOSTILE)
def test_what_a_stranger_writes_with_right_checksums_is_checked(corpus, folder, key):
    description = json.loads((folder / "store.json").read_text())
    assert key in description
    for value in HOSTILE[key]:
        (folder / "store.json").write_text(json.dumps({**description, key: value}))
        names = ("store.json", "train.bin", "validation.bin")
        crc32 = {name: zlib.crc32((folder / name).read_bytes()) for name in names}
        (folder / "checksums.json").write_text(json.dumps(crc32))
        assert_refused(corpus, folder)
