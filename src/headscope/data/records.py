"""Reads texts from records: rows of JSON Lines, CSV and Parquet files, and of datasets.

Files are read row by row, with the readers of Python and pyarrow. Those of the library `datasets`
take the schema from the first megabytes of a file, guess types, and read a whole file at once if a
line is damaged.
"""

import csv
import io
import json
import re
import string
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from headscope.data.text_file import OPEN, opened
from headscope.errors import UserError, first_line

Record = Mapping[str, Any]

PARQUET_ROWS = 32
"""Number of rows that are read from a Parquet file at a time. They are few to limit memory use,
because texts may be long."""


class Template:
    """How a record becomes a text: a `column`, or a `template` such as "{question}\\n{answer}", in
    which the values of the columns replace their names in braces, and a backslash with n or t is a
    line end or a tab.

    Raises UserError if the template is not valid.
    """

    def __init__(self, column: str, template: str | None) -> None:
        self.key = f"data.column={column}" if template is None else f"data.template={template!r}"
        self.is_column = template is None
        if template is None:
            self.parts: list[tuple[str, str | None]] = [("", column)]
            return
        try:
            parsed = list(string.Formatter().parse(unescaped(template)))
        except ValueError as error:
            raise UserError(f"{self.key}: {error}") from None
        for _, field, options, conversion in parsed:
            if field is not None and (not field or options or conversion):
                raise UserError(
                    f"{self.key}: write the name of a column in braces, such as {{text}}; for a "
                    "brace itself, write it twice"
                )
        self.parts = [(before, field) for before, field, _, _ in parsed]
        if not self.columns:
            raise UserError(f"{self.key} names no column: write one in braces, such as {{text}}")

    @property
    def columns(self) -> list[str]:
        """The columns that the text is made of, each once."""
        return list(dict.fromkeys(field for _, field in self.parts if field is not None))

    def text(self, record: Record, source: str) -> str:
        """The text of a record. It is empty if a column has no value. `source` names the data in
        errors."""
        for column in self.columns:
            if column not in record:
                raise UserError(
                    f"{self.key}: {source} has no column {column}; its columns: "
                    f"{', '.join(map(str, record))}"
                )
            value = record[column]
            if value is None:
                return ""
            if not isinstance(value, str if self.is_column else str | int | float):
                raise UserError(
                    f"{self.key}: column {column} of {source} is {type(value).__name__}, not text"
                )
        text = "".join(
            before + ("" if field is None else str(record[field])) for before, field in self.parts
        )
        return LONE_SURROGATE.sub("\N{REPLACEMENT CHARACTER}", text)


LONE_SURROGATE = re.compile("[\ud800-\udfff]")
"""Half of a character. JSON can contain it, but no encoding of Unicode can."""


def unescaped(text: str) -> str:
    """The text with line ends, tabs and backslashes instead of \\n, \\t and \\\\."""
    meanings = {"n": "\n", "t": "\t", "\\": "\\"}
    return re.sub(r"\\([nt\\])", lambda found: meanings[found[1]], text)


def format_of(file: Path) -> str | None:
    """The ending of a file with records, also if it is compressed. None for other files."""
    suffixes = [suffix.lower() for suffix in file.suffixes]
    if suffixes and suffixes[-1] in OPEN:
        suffixes.pop()
    ending = suffixes[-1] if suffixes else ""
    return ending if ending in READERS else None


def records(file: Path, columns: list[str]) -> Iterator[Record]:
    """The records of a file. Other columns than `columns` may be left out. Raises UserError if the
    file cannot be read."""
    read = READERS[format_of(file) or ""]
    with opened(file) as stream:
        try:
            yield from read(stream, columns)
        except UserError:
            raise
        except (ValueError, csv.Error) as error:  # ValueError: also of json, pyarrow and UTF-8
            raise UserError(f"{file} cannot be read: {first_line(error)}") from error


def json_lines(stream: BinaryIO, columns: list[str]) -> Iterator[Record]:
    for number, line in enumerate(stream, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"line {number}: {first_line(error)}") from None
        if not isinstance(record, dict):
            raise ValueError(f"line {number} is not a JSON object")
        # A row may leave out a column that has no value.
        yield dict.fromkeys(columns) | record if number > 1 else record


def separated_values(stream: BinaryIO, columns: list[str], *, delimiter: str) -> Iterator[Record]:
    csv.field_size_limit(2**31 - 1)  # the largest that every system takes; 128 KiB by default
    text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
    try:
        yield from csv.DictReader(text, delimiter=delimiter, restval=None)
    finally:
        text.detach()


def parquet(stream: BinaryIO, columns: list[str]) -> Iterator[Record]:
    from pyarrow.parquet import ParquetFile

    # Without a buffer size, a whole column is read at once.
    file = ParquetFile(stream, buffer_size=2**20)
    names = file.schema_arrow.names
    if not set(columns) <= set(names):
        yield dict.fromkeys(names)
        return
    for batch in file.iter_batches(batch_size=PARQUET_ROWS, columns=columns):
        yield from arrow_rows(batch)


def arrow_rows(table: Any) -> Iterator[Record]:
    """The rows of a table of pyarrow, converted one by one to limit memory use."""
    for row in zip(*table.columns, strict=True):
        yield {name: value.as_py() for name, value in zip(table.column_names, row, strict=True)}


READERS: dict[str, Callable[[BinaryIO, list[str]], Iterable[Record]]] = {
    ".jsonl": json_lines,
    ".ndjson": json_lines,
    ".csv": partial(separated_values, delimiter=","),
    ".tsv": partial(separated_values, delimiter="\t"),
    ".parquet": parquet,
}
"""For the endings of files with records, the functions that read them."""
