"""The laws of the token store: it is made once, and it is whole or not there."""

import json
import os
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
from headscope.data.store import LOCK, PREPARING, open_store, prepare_store


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
    assert first.name.startswith("text-")
    monkeypatch.setattr(TextFiles, "documents", None)  # reading the corpus would be an error
    for again in (prepare_store(corpus, tokenizers.char, root=root), open_store(first.folder)):
        assert again.folder == first.folder
        assert np.array_equal(again.train, first.train)
        assert np.array_equal(again.validation, first.validation)
        assert again.tokenizer.state() == first.tokenizer.state()
    with pytest.raises(TypeError, match="NoneType"):
        prepare_store(corpus, tokenizers.byte, root=root)


def test_each_text_and_tokenizer_has_a_store_of_its_own(corpus, root):
    write(root / f"{PREPARING}another", {"train.bin": "half of it"})  # left by a killed process
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
    assert names(root) == {LOCK}


def test_of_two_that_prepare_the_same_the_second_waits_for_the_first(corpus, root):
    started, waiting, go = Event(), Event(), Event()

    def wait(batches, size):
        started.set()
        assert go.wait(60)
        return batches

    def make_nothing(batches, size):
        raise AssertionError("this store was made twice")

    with ThreadPoolExecutor(2) as pool:  # a lock is of an open file, so threads are like processes
        prepare = partial(pool.submit, prepare_store, corpus, tokenizers.byte, root=root)
        first = prepare(track=wait)
        assert started.wait(60)
        second = prepare(track=make_nothing, say=lambda line: "waiting" in line and waiting.set())
        assert waiting.wait(60)
        go.set()
        assert first.result().folder == second.result().folder
    assert names(root) == {first.result().name, LOCK}


def test_a_text_that_changes_while_it_is_read_makes_no_store(corpus, root):
    class Changing(TextFiles):
        def documents(self, wanted):
            yield from super().documents(wanted)
            self.files[0].write_text("changed meanwhile")

    with refused("changed while it was read"):
        prepare_store(Changing(path=corpus.path), tokenizers.byte, root=root)
    assert names(root) == {LOCK}


@pytest.fixture
def folder(corpus, root):
    """The folder of a whole store."""
    return prepare_store(corpus, tokenizers.byte, root=root).folder


def assert_refused(corpus, folder, *words):
    """In one line that names the folder and says what to do."""
    with refused(folder, "delete it", *words):
        prepare_store(corpus, tokenizers.byte, root=folder.parent)


@pytest.mark.parametrize("name", ["train.bin", "validation.bin", "store.json", "tokenizer.json"])
def test_a_damaged_store_is_refused_in_one_line(corpus, folder, name):
    file, outside = folder / name, folder.parent / "outside"
    content = file.read_bytes()
    for changed in (b"", content[:-2], content + b"  {", b"\xff", b"[]", b"{}"):
        file.write_bytes(changed)
        assert_refused(corpus, folder)
    outside.write_bytes(content)
    file.unlink()
    assert_refused(corpus, folder)
    file.symlink_to(outside)  # it could name any file
    assert_refused(corpus, folder)


CHANGES = {
    "format": [1, "3", True],
    "dtype": ["word", "uint32"],
    "vocab_size": [258, 257.0],
    "fingerprint": ["0" * 64],
    "tokenizer_sha256": ["0" * 64],
    "train_tokens": [3, "7", None],
    "train_crc32": [0, "0", None],
    "validation_bytes": ["1", -1, 2**60],
}


def test_a_store_that_is_not_as_described_is_an_error(corpus, folder):
    description = json.loads((folder / "store.json").read_text())
    for key, values in CHANGES.items():
        assert key in description
        for value in values:
            (folder / "store.json").write_text(json.dumps({**description, key: value}))
            assert_refused(corpus, folder)
    (folder / "store.json").write_text(json.dumps(description))
    other = tokenizers.bpe(["a"], vocab_size=257)  # of the same size
    (folder / "tokenizer.json").write_text(json.dumps(other.state()))
    assert_refused(corpus, folder)


@pytest.mark.parametrize(("split", "place"), [("train", 0.5), ("validation", 0.999)])
def test_a_flipped_bit_and_a_token_outside_the_vocabulary_are_noticed(
    corpus, folder, split, place, monkeypatch
):
    monkeypatch.setattr(encode, "CHUNK", 100)  # several chunks of these few tokens
    file = folder / f"{split}.bin"
    tokens, before = np.fromfile(file, dtype=np.uint16), file.stat()
    for change in (1, 512):
        changed = tokens.copy()
        changed[int(place * len(tokens))] ^= change
        changed.tofile(file)
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert_refused(corpus, folder)
    description = json.loads((folder / "store.json").read_text())
    crc = {f"{split}_crc32": zlib.crc32(changed.tobytes())}  # a stranger can write the right one
    (folder / "store.json").write_text(json.dumps(description | crc))
    assert_refused(corpus, folder, "not in the vocabulary")
