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
from pathlib import Path
from typing import Any, BinaryIO

from headscope.data.text_file import OPEN, opened
from headscope.errors import UserError, first_line

Record = Mapping[str, Any]

LONGEST_LINE = 2**28
"""Maximum number of bytes of a row, to limit memory use."""


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
        return "".join(
            before + ("" if field is None else str(record[field])) for before, field in self.parts
        )


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
    number = 0
    while line := stream.readline(LONGEST_LINE):
        number += 1
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
    text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
    earlier = csv.field_size_limit(LONGEST_LINE)
    try:
        yield from csv.DictReader(text, delimiter=delimiter, restval=None)
    finally:
        csv.field_size_limit(earlier)
        text.detach()


def parquet(stream: BinaryIO, columns: list[str]) -> Iterator[Record]:
    from pyarrow.parquet import ParquetFile

    file = ParquetFile(stream)
    known = [column for column in columns if column in file.schema_arrow.names]
    if len(known) < len(columns):
        yield dict.fromkeys(file.schema_arrow.names)
        return
    for batch in file.iter_batches(batch_size=1000, columns=known):
        yield from batch.to_pylist()


def comma_separated(stream: BinaryIO, columns: list[str]) -> Iterator[Record]:
    return separated_values(stream, columns, delimiter=",")


def tab_separated(stream: BinaryIO, columns: list[str]) -> Iterator[Record]:
    return separated_values(stream, columns, delimiter="\t")


READERS: dict[str, Callable[[BinaryIO, list[str]], Iterable[Record]]] = {
    ".jsonl": json_lines,
    ".ndjson": json_lines,
    ".csv": comma_separated,
    ".tsv": tab_separated,
    ".parquet": parquet,
}
"""For the endings of files with records, the functions that read them."""
