"""The laws of records: a row is a document, in every format, compressed or not."""

import bz2
import csv
import gzip
import io
import json
import lzma

import pyarrow
import pytest
from datasets import Dataset
from pyarrow import parquet as parquet_module

from headscope.data.corpus import hold_out
from headscope.data.own_files import Template, TextFiles, records
from headscope.data.text_file import text_chunks
from headscope.errors import UserError

ROWS = [
    {"question": f"Why {number}?", "answer": "Because\nof 中文 {it}.", "number": number}
    for number in range(23)
]
TEXTS = [f"{row['question']}\n{row['answer']}" for row in ROWS]


def zstd(data: bytes) -> bytes:
    return pyarrow.Codec("zstd").compress(data, asbytes=True)


def jsonl(rows=ROWS) -> bytes:
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()


def as_csv(delimiter: str) -> bytes:
    stream = io.StringIO()
    writer = csv.DictWriter(stream, ROWS[0], delimiter=delimiter)
    writer.writeheader()
    writer.writerows(ROWS)
    return stream.getvalue().encode()


def parquet() -> bytes:
    stream = io.BytesIO()
    Dataset.from_list(ROWS).to_parquet(stream)
    return stream.getvalue()


FILES = {
    "a.jsonl": jsonl(),
    "a.csv": as_csv(","),
    "a.tsv": as_csv("\t"),
    "a.parquet": parquet(),
    "a.jsonl.gz": gzip.compress(jsonl()),
    "a.csv.xz": lzma.compress(as_csv(",")),
    "a.jsonl.zst": zstd(jsonl()),
}


def documents(path, **options) -> dict[str, list[str]]:
    found = {"train": [], "validation": []}
    for document in TextFiles(path=str(path), **options).documents():
        found[document.split].append("".join(document.pieces))
    return found


@pytest.mark.parametrize("name", FILES)
def test_every_row_is_a_document(tmp_path, name):
    folder = tmp_path / "a [1] *?"
    folder.mkdir()
    (folder / name).write_bytes(FILES[name])
    for path in (folder / name, folder):
        found = documents(path, template=r"{question}\n{answer}")
        assert found["validation"] == TEXTS[9::10]
        assert found["train"] == [text for text in TEXTS if text not in found["validation"]]


def test_what_a_template_cannot_take_is_named(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(jsonl())
    for options, message in (
        ({"column": "number"}, "column number of .* is int, not text"),
        ({"column": "text"}, "has no column text; its columns: question, answer, number"),
        ({"template": "{words}"}, "has no column words"),
        ({"template": "no columns"}, "names no column"),
        ({"template": "{question"}, "data.template='{question': "),
        ({"template": "{}"}, "name of a column in braces"),
        ({"template": "{number:>9999999999}"}, "name of a column in braces"),
        ({"template": "{question!r}"}, "name of a column in braces"),
        ({"template": "{question.__class__}"}, "has no column question.__class__"),
    ):
        with pytest.raises(UserError, match=message):
            documents(tmp_path, **options)


def test_a_template_may_have_numbers_braces_and_tabs():
    template = Template("text", r"{number}\t{{{answer}}}\\n")
    assert template.text({"number": 7, "answer": "a"}, "here") == "7\t{a}\\n"
    assert Template("", r"{a}\n\t\\n\q").text({"a": ""}, "here") == "\n\t\\n\\q"


def test_rows_without_a_value_or_without_text_are_left_out(tmp_path):
    rows = [{"text": text} for text in ("one", None, "", "two")]
    (tmp_path / "a.jsonl").write_bytes(jsonl(rows))
    assert documents(tmp_path) == {"train": ["one"], "validation": ["two"]}


def test_values_of_csv_are_not_interpreted(tmp_path):
    for text in ("NA", "null", "nan", "007", "3", "2020-01-01", 'a,b\n"c"', " "):
        stream = io.StringIO()
        csv.writer(stream).writerows([["text"], ["first"], [text]])
        (tmp_path / "a.csv").write_bytes(stream.getvalue().encode())
        assert documents(tmp_path) == {"train": ["first"], "validation": [text]}


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv"])
def test_a_row_may_be_long(tmp_path, name):
    text = "long " * 100_000
    content = {
        "a.jsonl": jsonl([{"text": text}, {"text": "b"}]),
        "a.csv": f"text\n{text}\nb\n".encode(),
    }
    (tmp_path / name).write_bytes(content[name])
    assert documents(tmp_path) == {"train": [text], "validation": ["b"]}


def test_empty_files_and_late_keys_are_no_error(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b"")
    (tmp_path / "b.jsonl").write_bytes(jsonl([{"text": "one"}, {"text": "two", "more": 1}, {}]))
    assert documents(tmp_path) == {"train": ["one"], "validation": ["two"]}


def test_text_files_come_first_in_a_folder(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(jsonl())
    (tmp_path / "b.txt").write_text("plain text")
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(b"more"))
    assert documents(tmp_path) == {"train": ["plain text"], "validation": ["more"]}


@pytest.mark.parametrize("content", [b'{"text": "one"}\n{"text', b"[1, 2]\n", b"\xff\xfe\n", b"{}"])
def test_a_damaged_file_is_an_error_that_names_it(tmp_path, content):
    (tmp_path / "a.jsonl").write_bytes(content)
    with pytest.raises(UserError, match=r"a\.jsonl|is empty") as error:
        documents(tmp_path)
    assert "\n" not in str(error.value)


PACKED = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": zstd}


@pytest.mark.parametrize("ending", PACKED)
def test_a_compressed_text_is_read_whole_or_refused(tmp_path, ending):
    text = "".join(f"line {number}\n" for number in range(150_000))
    packed = PACKED[ending](text.encode())
    file = tmp_path / f"a.txt{ending}"
    file.write_bytes(packed)
    assert "".join(text_chunks(file)) == text
    file.write_bytes(packed + packed)  # as `cat` joins them
    assert "".join(text_chunks(file)) == text + text
    file.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(UserError, match=rf"a\.txt\{ending}"):
        list(text_chunks(file))
    file.write_bytes(b"no such format")
    with pytest.raises(UserError, match=rf"a\.txt\{ending} cannot be read"):
        list(text_chunks(file))


def test_half_a_character_in_json_becomes_the_replacement_character(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a \\ud83d b"}\n{"text": "\\ud83e\\udd9c"}\n')
    assert documents(tmp_path) == {"train": ["a \ufffd b"], "validation": ["🦜"]}


def test_parquet_needs_little_memory_for_long_texts(tmp_path):
    table = pyarrow.table({"text": [f"{number:9}" * 10_000 for number in range(1500)]})
    # Small pages, because pyarrow reads whole pages.
    parquet_module.write_table(
        table, tmp_path / "a.parquet", use_dictionary=False, write_batch_size=16
    )
    before, peak = pyarrow.total_allocated_bytes(), 0
    for row in records(tmp_path / "a.parquet", ["text"]):
        peak = max(peak, pyarrow.total_allocated_bytes() - before)
        assert len(row["text"]) == 90_000
    assert peak < 40 * 10**6


def test_another_format_is_another_text(tmp_path):
    content = b"text\nleft, right\none\n"
    for name in ("a.csv", "a.tsv"):
        (tmp_path / name).write_bytes(content)
    found = [TextFiles(path=str(tmp_path / name)) for name in ("a.csv", "a.tsv")]
    assert found[0].fingerprint() != found[1].fingerprint()


def test_the_ending_of_a_compressed_file_may_have_capitals(tmp_path):
    (tmp_path / "A.JSONL.GZ").write_bytes(gzip.compress(jsonl()))
    assert len(documents(tmp_path, column="answer")["train"]) > 10


def test_documents_are_read_one_ahead():
    read = []

    def items():
        for number in range(1, 25):
            read.append(number)
            yield number

    for index, (_, item) in enumerate(hold_out(items()), start=1):
        assert item == index
        assert len(read) <= index + 1
    for count in range(1, 25):
        held_out = [item for split, item in hold_out(range(1, count + 1)) if split == "validation"]
        assert held_out == ([count] if count < 10 else list(range(10, count + 1, 10)))
