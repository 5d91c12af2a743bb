"""The laws of the user's own files: every text is read whole, in every format, compressed or not,
and an error message names the file that cannot be read and what to do."""

import bz2
import csv
import gzip
import io
import json
import lzma
import os
from functools import partial

import pyarrow
import pytest
from corpora import every_tenth, jsonl, texts, write
from pyarrow import parquet as parquet_module
from refusals import refused

from headscope.data.encode import validation_text
from headscope.data.own_files import TextFiles
from headscope.data.store import prepare_store
from headscope.data.text_file import text_chunks
from headscope.data.tokenizer import byte


def read(path, **options):
    return texts(TextFiles(path=str(path), **options))


def text_of(file):
    return "".join(text_chunks(file))


# --- text files ---


def test_a_folder_is_its_texts_at_any_depth_and_a_glob_is_what_it_finds(tmp_path):
    """What is skipped in a folder is counted."""
    files = {
        "a/deep": {"2.txt.gz": gzip.compress(b"two"), "3.md": "markdown"},
        "a": {"1.py": "one", "empty.txt": "", "rows.jsonl": jsonl(["row"]), "z.png": b"\x89PNG\0"}
        | {"table.csv": "name,number\none,1\n", "latin.1": b"caf\xe9", ".x": "x"},
        "a/.git": {"config": "hidden"},
        "a/run/analysis": {"heads.csv": "text"},
        "a/run/.hydra": {"config.yaml": "text"},
        "a/data/store": {"store.json": "text", "checksums.json": "text"},
        "b": {"3.txt": "three", "4.md": "\u9053" * 8000},  # the tested part ends in a letter
    }
    for folder, content in files.items():
        write(tmp_path / folder, content)
    assert read(tmp_path / "a") == (["one", "two", "markdown"], ["row"])
    notice = TextFiles(path=str(tmp_path / "a")).notice
    assert f"data.path={tmp_path / 'a'}: 10 of 14 files are skipped" in notice
    assert TextFiles(path=str(tmp_path / "b")).notice is None
    assert read(f"{tmp_path}/**/*.txt*") == (["two"], ["three"])
    assert read(f"{tmp_path}/*/deep/*") == (["two"], ["markdown"])


def test_links_to_folders_are_followed_once_and_a_loop_ends(tmp_path):
    """A file that is found without links keeps its place in the order."""
    folder = tmp_path / "a"
    write(folder / "b" / "deep", {"1.txt": "one"})
    write(folder / ".hidden", {"2.txt": "two"})
    write(tmp_path / "elsewhere" / "deep", {"3.txt": "three", "4.bin": b"\0"})
    links = {"a": "b", "z": "../elsewhere", "y": "../elsewhere", "gone": "nowhere", "self": "self"}
    links |= {"b/loop": "..", "shown": ".hidden", ".link": "../elsewhere", "z.txt": "b/deep/1.txt"}
    for name, target in links.items():
        (folder / name).symlink_to(target)
    (tmp_path / "elsewhere" / "up").symlink_to("../a")
    corpus = TextFiles(path=str(folder))
    expected = ["b/deep/1.txt", "shown/2.txt", "y/deep/3.txt", "z.txt"]
    assert [str(file.relative_to(folder)) for file in corpus.files] == expected
    assert "2 of 6 files are skipped" in corpus.notice  # .hidden/2.txt and 4.bin
    assert texts(corpus) == (["one", "two", "three"], ["one"])
    # A glob also finds 4.bin, which is no text.
    for pattern in ("**/*.txt", "**", "**/**/*.txt", "*/../**/*.txt"):
        found = TextFiles(path=f"{folder}/{pattern}").files
        names = {str(file.resolve().relative_to(tmp_path)) for file in found}
        assert len(found) == len(names) + 1, pattern  # z.txt is the second name of a file
        expected = {"a/b/deep/1.txt", "a/.hidden/2.txt", "elsewhere/deep/3.txt"}
        assert names - {"elsewhere/deep/4.bin"} == expected


MARK = b"\xef\xbb\xbf"
CHINESE = "多年以后奥雷连诺上校站在行刑队面前\n" * 20


def test_utf8_is_read_as_it_is_but_line_ends_become_lf_and_the_byte_order_mark_goes(tmp_path):
    """The last tenth of a single file is held out."""
    text = f"{CHINESE} 😀 \u2028 \ufeff é a\tb\x0c\x7f"
    write(tmp_path, {"a.txt": text, "dos.txt": MARK + b"a\r\nb\rc\n"})
    assert text_of(tmp_path / "dos.txt") == "a\nb\nc\n"
    cut = len(text) * 9 // 10
    assert read(tmp_path / "a.txt") == ([text[:cut]], [text[cut:]])


DAMAGED = [
    ("b.txt", CHINESE.encode("utf-16"), ["iconv -f utf-16 -t utf-8 old > new"]),
    ("b.txt", b"\0t\0e\0x\0t", ["the first at offset 0;", "-f utf-16be"]),  # without a mark
    ("b.txt", CHINESE.encode("gb18030"), ["not UTF-8: byte 0xb6 at offset 0;", "gb18030"]),
    ("b.txt", MARK + "é".encode() * 2**20 + b"\xff.", ["offset 2097155;", "iconv -c"]),
    ("b.txt", "café".encode()[:-1], ["byte 0xc3 at offset 3;", "damaged"]),  # a cut character
    ("b.txt", gzip.compress(CHINESE.encode()), ["binary file: ", ".gz"]),
    *(("b.jsonl", data, []) for data in (b'{"text": "one"}\n{"text', b"[1, 2]\n", b"\xff\xfe\n")),
    *(
        ("b.json", data, ["line 1: ", "write an object in each line, or an array"])
        for data in (b'{\n"text": "one"\n}', b'["one"]', b'[{"text": "one"}, ', b"[" * 10**5, b"1")
    ),
    ("b.csv", b"text\nfine\n\nHello, world\n", ["line 4 has 2 field(s)", "the header 1: put"]),
    ("b.csv", b'text\n"two\nlines"\n"no\nend\n', ["line 4: ", "double quotes"]),
    ("b.tsv", b'id\ttext\n1\t"Yes" she said\n', ["line 2: ", "double quotes"]),
    ("b.csv", b"text,id,text\none,1,two\n", ["line 1: ", "two columns are named 'text': rename"]),
]


@pytest.mark.parametrize(("name", "data", "words"), DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_file_is_named_with_the_place_and_what_it_looks_like(tmp_path, name, data, words):
    write(tmp_path, {"a.txt": "fine", name: data})
    with refused(name, *words):
        read(f"{tmp_path}/*")


def test_what_has_no_text_or_vanishes_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "notes", {"notes.bin": b"\0"})
    for path in ("", os.fsdecode(b"caf\xe9"), "*.txt", "notes"):
        with refused("data.path=", " file"):
            TextFiles(path=path)
    write(tmp_path / "empty", {"empty.txt": "", "mark.txt": MARK})
    with refused("data.path=", "empty is empty"):
        read("empty")
    corpus = TextFiles(path=str(write(tmp_path, {"a.txt": "one", "b.txt": "two"})))
    (tmp_path / "b.txt").unlink()
    with refused("b.txt cannot be read: No such file"):
        texts(corpus)


def zstd(data):
    return pyarrow.Codec("zstd").compress(data, asbytes=True)


PACKED = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": zstd}


@pytest.mark.parametrize("ending", PACKED)
def test_a_compressed_text_is_read_whole_or_refused(tmp_path, ending):
    text = "".join(f"line {number}\n" for number in range(50_000))
    packed = PACKED[ending](text.encode())
    file = tmp_path / f"a.txt{ending}"
    file.write_bytes(packed + packed)  # as `cat` joins them
    assert text_of(file) == text + text
    for data in (packed[: len(packed) // 2], b"no such format"):
        file.write_bytes(data)
        with refused(f"a.txt{ending} cannot be read"):
            text_of(file)


# --- files with rows ---


def in_format(name, rows):
    """A file with these rows in the format of its name. A row may leave out a value."""
    whole = [{key: None for row in rows for key in row} | row for row in rows]
    binary, text = io.BytesIO(), io.StringIO()
    if ".json" in name.lower():
        array = name.endswith(".json") or ".json.x" in name
        text.write(json.dumps(rows, indent=1) if array else jsonl(rows))
    elif "parquet" in name:
        parquet_module.write_table(pyarrow.Table.from_pylist(whole), binary)
    else:
        writer = csv.writer(text, delimiter="\t" if "tsv" in name else ",")
        writer.writerows([whole[0].keys(), *(row.values() for row in whole)])
    data = binary.getvalue() or text.getvalue().encode()
    return PACKED.get(name[name.rindex(".") :].lower(), bytes)(data)


ROWS = [
    {"question": f"Why {number}?", "answer": "Because\nof 中文 {it}.", "number": number}
    for number in range(23)
]
TEXTS = [f"{row['question']}\n{{{row['answer']}}}\t{row['number']}\\q" for row in ROWS]
NAMES = ["a.jsonl", "a.csv", "a.tsv", "a.parquet", "a.json", "a.json.xz", "A.JSONL.GZ", "a.csv.xz"]


@pytest.mark.parametrize("name", [*NAMES, "a.jsonl.zst", "mark.json", "lines.json"])
def test_every_row_is_a_document(tmp_path, name):
    data = in_format(name, ROWS)
    data = {"mark.json": MARK + b"\n" + data, "lines.json": jsonl(ROWS)}.get(name, data)
    folder = write(tmp_path / "a=1 [1] *?${x}", {name: data})
    assert read(folder, template=r"{question}\n{{{answer}}}\t{number}\q") == every_tenth(TEXTS)


TURN = {"role": "user", "content": "Hello"}
NO_CHATS = [["Hello"], [{"role": "user"}], [TURN | {"content": None}], [TURN | {"role": 1}], TURN]
REFUSED = [
    ({"column": "number"}, ["is int, not text"]),
    ({"column": "text"}, ["no column text; its columns: question, answer, number", "data.column="]),
    ({"template": "{words}"}, ["has no column words"]),
    ({"template": "no columns"}, ["names no column"]),
    ({"template": "{question"}, ["data.template='{question': "]),
    ({"template": "{number:>9999999999}"}, ["name of a column in braces"]),
    ({"template": "{question.__class__}"}, ["has no column question.__class__"]),
]


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.parquet"])
def test_what_a_template_cannot_take_is_named(tmp_path, name):
    file = write(tmp_path, {name: in_format(name, ROWS)}) / name
    for options, words in REFUSED:
        with refused(*words):
            read(file, **options)
    for chat in NO_CHATS:
        write(tmp_path, {"chat.jsonl": jsonl([{"messages": chat}])})
        with refused("data.column=messages: ", "row 1, is ", "role"):
            read(tmp_path / "chat.jsonl", column="messages")


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.parquet"])
def test_rows_without_a_value_are_counted_and_refused_if_they_are_most(tmp_path, name):
    """A row lacks the column, also the first one, or has null in it. An empty text is a value."""
    said: list[str] = []
    prepare = partial(prepare_store, make_tokenizer=byte, root=tmp_path / "data", say=said.append)

    def corpus(folder, rows):
        return TextFiles(path=str(write(tmp_path / folder, {name: in_format(name, rows)}) / name))

    full = {"text": "text", "system": "s"}
    some = corpus("some", [{"system": "s"}, full, {"text": ""}, full, {"text": None}])
    assert texts(some) == (["text"], ["text"])
    prepare(some)
    [notice] = [line for line in said if "without a value" in line]
    assert "2 of 5 rows" in notice
    assert f"in {tmp_path}/some/{name}" in notice
    stores = {path.name for path in (tmp_path / "data").iterdir()}
    most = corpus("most", [full, {"text": None}, {"text": ""}, *[{"system": "s"}] * 1200])
    for read_all in (prepare, texts, partial(validation_text, tokenizer=byte([]))):
        with refused("data.column=text: 1,201 of 1,203 rows of", f"most/{name}", "another column"):
            read_all(most)
    assert {path.name for path in (tmp_path / "data").iterdir()} == stores


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.parquet"])
def test_a_chat_is_a_text_with_each_turn_below_its_role(tmp_path, name):
    chats = [[TURN, {"role": "assistant", "content": f"Hi {n}!\n中"}] for n in range(20)]
    rows = [{"messages": chat, "id": "i"} for chat in chats]
    file = write(tmp_path, {name: in_format(name, rows)}) / name
    expected = [f"user:\nHello\n\nassistant:\nHi {n}!\n中" for n in range(20)]
    assert read(file, column="messages") == every_tenth(expected)
    within = [f"i\n{text}" for text in expected]
    assert read(file, template=r"{id}\n{messages}") == every_tenth(within)


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.json", "a.parquet"])
def test_values_are_not_interpreted_and_may_be_long(tmp_path, name):
    values = ["NA", "null", "nan", "007", "2020-01-01", 'a,b\n"c"', " ", "long " * 100_000, "last"]
    file = write(tmp_path, {name: in_format(name, [{"text": text} for text in values])}) / name
    assert read(file) == (values[:-1], values[-1:])


def test_half_of_a_character_is_read_as_unknown(tmp_path):
    lines = jsonl(["one \ud83d", "two"])
    assert read(write(tmp_path, {"b.jsonl": lines}) / "b.jsonl") == (["one \ufffd"], ["two"])


def test_the_fingerprint_is_of_the_text_and_its_format_not_of_its_place(tmp_path):
    def fingerprint(files, **options):
        """Of a folder with these files, each time another one."""
        folder = write(tmp_path / str(len(list(tmp_path.iterdir()))), files)
        return TextFiles(path=str(folder), **options).fingerprint()

    files = [{"a.txt": "one", "b.txt": "two"}, {"a.txt": "two", "b.txt": "one"}, {"a.txt": "one"}]
    files += [{name: '[{"text": "one"}]'} for name in ("a.txt", "a.json")]
    files += [{name: "text\nleft, right\none\n"} for name in ("a.csv", "a.tsv")]
    made = [fingerprint(each) for each in files]
    made += [fingerprint(files[-1], template="<{text}"), fingerprint(files[0], deduplicate=True)]
    assert len(set(made)) == len(made)
    assert fingerprint(files[0]) == made[0]
