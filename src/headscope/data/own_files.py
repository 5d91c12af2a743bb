"""The user's own files as a corpus: text files, and rows of JSON, CSV and Parquet files.

Rows are read one by one, with the readers of Python and pyarrow. Those of the library `datasets`
make a date of "2020-01-01", refuse half of a character, and stop at keys that come late.
"""

import codecs
import csv
import glob
import hashlib
import io
import json
import os
import re
import string
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO

from headscope.data.corpus import Corpus, Document, Wanted, digest, hold_out, one_document, pieces
from headscope.data.text_file import OPEN, SAMPLE_BYTES, file_sha256, opened, text_chunks
from headscope.errors import UserError, first_line

Record = dict[str, Any]

LONE_SURROGATE = re.compile("[\ud800-\udfff]")
"""Half of a character. JSON can contain it, but no encoding of Unicode can."""

FIRST_ROWS = 32
"""A column must be in one of the first rows. This number is small, as texts may be long."""

ESCAPES = {"\\n": "\n", "\\t": "\t", "\\\\": "\\"}

MARKS = (".hydra", "checksums.json", "multirun.yaml")
"""Files that headscope writes into run folders, token stores and the folders of sweeps."""


class Template:
    """How a record becomes a text: a `column`, or a `template` such as "{question}\\n{answer}", in
    which the values of the columns replace their names in braces, and a backslash with n or t is a
    line end or a tab. The value of a column may also be a chat: see `chat_text`.

    Raises UserError if the template is not valid.
    """

    def __init__(self, column: str, template: str | None) -> None:
        self.key = f"data.column={column}" if template is None else f"data.template={template!r}"
        self.is_column = template is None
        self.left_out: dict[str, tuple[int, int]] = {}  # see `Corpus.left_out`
        if template is None:
            self.pieces: list[tuple[str, str | None]] = [("", column)]
            return
        try:
            unescaped = re.sub(r"\\[nt\\]", lambda match: ESCAPES[match[0]], template)
            parsed = list(string.Formatter().parse(unescaped))
        except ValueError as error:
            raise UserError(f"{self.key}: {error}") from None
        for _, field, options, conversion in parsed:
            if field is not None and (not field or options or conversion):
                advice = "write the name of a column in braces, such as {text}"
                raise UserError(f"{self.key}: {advice}; for a brace itself, write it twice")
        self.pieces = [(before, field) for before, field, _, _ in parsed]
        if not self.columns:
            raise UserError(f"{self.key} names no column: write one in braces, such as {{text}}")

    @property
    def columns(self) -> list[str]:
        """The columns that the text is made of, each once."""
        return list(dict.fromkeys(field for _, field in self.pieces if field is not None))

    def texts(self, records: Iterable[Record], source: str) -> Iterator[str]:
        """The texts of the records that have one. Raises UserError if most have no value."""
        rows = missing = 0
        for rows, record in enumerate(records, start=1):
            text = self.text(record, f"{source}, row {rows:,},")
            missing += text is None
            # A later pass may read fewer rows of the source.
            self.left_out[source] = max((missing, rows), self.left_out.get(source, (0, 0)))
            if text:
                yield text
        if 2 * missing > rows:
            why = f"{missing:,} of {rows:,} rows of {source} have no value"
            raise UserError(f"{self.key}: {why}: choose another column, or remove these rows")

    def text(self, record: Record, source: str) -> str | None:
        """The text of a record, or None if a column has no value. `source` is named in errors."""
        text = ""
        for before, column in self.pieces:
            if column is not None and column not in record:
                columns = ", ".join(map(str, record))
                problem = f"{source} has no column {column}; its columns: {columns}"
                advice = "data.column=, or join several with data.template='{a}\\n{b}'"
                raise UserError(f"{self.key}: {problem}; choose one with {advice}")
            value = "" if column is None else record[column]
            if value is None:
                return None
            words = chat_text(value) if isinstance(value, list) else value
            if not isinstance(words, str if self.is_column else str | int | float):
                kind = f"column {column} of {source} is {type(value).__name__}"
                raise UserError(f"{self.key}: {kind}, not text or turns with role and content")
            text += f"{before}{words}"
        return LONE_SURROGATE.sub("\N{REPLACEMENT CHARACTER}", text)


def chat_text(turns: list[Any]) -> str | None:
    """The text of a chat: for each turn, its role with a colon, and its content from the next line.
    An empty line separates turns. None if a turn does not have a `role` and a `content` as text."""
    try:
        return "\n\n".join(turn["role"] + ":\n" + turn["content"] for turn in turns)
    except (KeyError, TypeError):
        return None


@contextmanager
def errors_of_text(path: Path | str | None) -> Iterator[None]:
    """In the `with` block, errors about the file or folder `path` name the key `text`."""
    try:
        yield
    except UserError as error:
        raise UserError(f"text={path}: {error}") from error


class TextFiles(Corpus):
    """The user's own files. `path` is a file, a glob pattern or a folder.

    A text file in UTF-8 is one document. In a JSON, JSON Lines, CSV or Parquet file, each row is a
    document: see `Template` for `column` and `template`. Files may be compressed. From a folder and
    its subfolders, also linked ones, all files are read, except hidden files, those that are
    neither UTF-8 text nor rows, and what runs have written. `notice` tells how many these are.

    Every tenth document, in the order of file names, is held out for validation. If there are fewer
    than ten, the last one is. If there is only one, the last tenth of its characters is held out.

    With `deduplicate`, only the first of several equal documents is kept.

    Raises UserError if there is no such file, or if a file is not text.
    """

    name = "text"

    def __init__(
        self,
        *,
        path: str,
        column: str = "text",
        template: str | None = None,
        deduplicate: bool = False,
    ) -> None:
        if not path or LONE_SURROGATE.search(path):
            raise UserError(f"data.path={path!a} must name a file, a folder or a glob, in UTF-8")
        self.path = path = os.path.expanduser(path)
        self.characters: int | None = None  # of the only document, when they have been counted
        self.template = Template(column, template)
        self.left_out = self.template.left_out
        self.deduplicate = deduplicate
        target = Path(path)
        if target.is_dir():
            below = paths_below(target)
            own = {path.parent for (real, _), path in below.items() if any(map(real.match, MARKS))}
            files = {path: hidden for (_, hidden), path in below.items() if path.is_file()}
            shown = sorted(file for file, hidden in files.items() if not hidden)
            files_of_user = [file for file in shown if (own - {target}).isdisjoint(file.parents)]
            self.files = [file for file in files_of_user if self._is_read(file)]
            # Without any text, a file with rows raises an error that names its columns.
            self.files = self.files or [file for file in files_of_user if format_of(file)]
            if skipped := sorted({*files} - {*self.files}):
                self.notice = (
                    f"data.path={path}: {len(skipped):,} of {len(files):,} files are skipped, such "
                    f"as {skipped[0]}: hidden, empty, written by runs, or neither UTF-8 text nor "
                    f"rows with {self.template.key}"
                )
        else:
            found = [target] if target.is_file() else paths_matching(path)
            self.files = sorted(file for file in found if file.is_file())
        if not self.files:
            raise UserError(f"data.path={path} names no file, and no folder with text or rows")

    def fingerprint(self) -> str:
        self.characters = None  # the text may have changed
        hashes = "".join(map(file_sha256, self.files))
        formats = [format_of(file) for file in self.files]
        if any(formats):
            hashes += json.dumps([formats, self.template.pieces])
        return hashlib.sha256((hashes + "unique" * self.deduplicate).encode()).hexdigest()

    def documents(self, wanted: Wanted = lambda split: True) -> Iterator[Document]:
        texts = self._texts()
        first = list(islice(texts, 2))
        if not first:
            raise UserError(f"data.path={self.path} is empty")
        if len(first) == 1:
            # The last tenth depends on the length, which is counted when the text is read first.
            [(_, chunks)] = first
            if self.characters is None:
                self.characters = sum(map(len, chunks))
                _, chunks = next(self._texts())
            yield from one_document(chunks, self.characters)
            return
        for split, (compute_digest, chunks) in hold_out(chain(first, texts)):
            yield Document(split, pieces(chunks), compute_digest)

    def size(self) -> int | None:
        other = any(format_of(file) or file.suffix.lower() in OPEN for file in self.files)
        return None if other else sum(file.stat().st_size for file in self.files)

    def _is_read(self, file: Path) -> bool:
        """Whether a file in a folder is read: it begins with text, or a row with the columns."""
        with suppress(UserError, UnicodeDecodeError), opened(file) as stream:
            if format_of(file):
                row = next(iter(records(file, self.template.columns)), {})
                return {*self.template.columns} <= row.keys()
            data = stream.read(SAMPLE_BYTES)
            text = codecs.getincrementaldecoder("utf-8")().decode(data, len(data) < SAMPLE_BYTES)
            return bool(text) and "\0" not in text
        return False

    def _texts(self) -> Iterator[tuple[Callable[[], bytes], Iterable[str]]]:
        """For each document, a function that computes its digest, and its text in chunks."""
        for file in self.files:
            if format_of(file):
                for text in self.template.texts(records(file, self.template.columns), str(file)):
                    yield partial(digest, [text]), [text]
                continue
            chunks = text_chunks(file)
            for begin in chunks:  # a file without text is no document
                yield partial(lambda file: digest(text_chunks(file)), file), chain([begin], chunks)
                break


def paths_below(folder: Path) -> dict[tuple[Path, bool], Path]:
    """All paths below a folder, also through links, unless these are hidden. The keys are the path
    without links, and whether the path is hidden. Each occurs once, so a loop of links ends."""
    paths: dict[tuple[Path, bool], Path] = {}
    waiting, real = [folder], cache(Path.resolve)
    for start in waiting:  # links come last: a file that has a path without links keeps it
        for path in sorted(start.rglob("*")):
            hidden = any(name.startswith(".") for name in path.relative_to(folder).parts)
            is_new = paths.setdefault((real(path.parent) / path.name, hidden), path) is path
            if is_new and not hidden and path.is_symlink() and path.is_dir():
                waiting.append(path)
    return paths


def paths_matching(pattern: str) -> list[Path]:
    """The paths that a glob pattern matches, each once if links lead to it on several ways. `**` is
    a folder and all folders below it, as `paths_below` finds them."""
    parts, found = Path(pattern).parts, [Path()]
    for part in (*parts, "*") if parts[-1] == "**" else parts:
        if part == "**":
            below = [item for start in found for item in paths_below(start).items()]
            found += [path for (_, hidden), path in below if not hidden and path.is_dir()]
        else:
            found = [start / name for start in found for name in glob.glob(part, root_dir=start)]
        found = [*{path.parent.resolve() / path.name: path for path in reversed(found)}.values()]
    return found


def format_of(file: Path) -> str | None:
    """The ending of a file with rows, also if it is compressed. None for other files."""
    name = file.name.lower()
    for ending in OPEN:
        name = name.removesuffix(ending)
    return next((ending for ending in READERS if name.endswith(ending)), None)


def records(file: Path, columns: list[str]) -> Iterator[Record]:
    """The rows of a file, perhaps with `columns` only. Raises UserError if it cannot be read."""
    read = READERS[format_of(file) or ""]
    with opened(file) as stream:
        try:
            rows = iter(read(stream, columns))
            first = list(islice(rows, FIRST_ROWS))
            known = dict.fromkeys(name for row in first for name in columns if name in row)
            for row in chain(first, rows):
                yield known | row  # a row of JSON may leave out a column that has no value
        except ValueError as error:  # also of json, pyarrow and UTF-8
            raise UserError(f"{file} cannot be read: {first_line(error)}") from error


def json_rows(stream: Any, columns: list[str]) -> Iterator[Record]:
    """Yields the rows of JSON Lines, or of a JSON array. An array is read into memory at once."""
    is_array = stream.peek(SAMPLE_BYTES).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[")
    for number, line in enumerate([stream.read()] if is_array else stream, start=1):
        try:
            if not line.strip():
                continue
            rows = json.loads(line) if is_array else [json.loads(line)]
            if not all(isinstance(row, dict) for row in rows):
                raise ValueError("not an object")
        except (ValueError, RecursionError) as error:
            advice = "write an object in each line, or an array of them"
            raise ValueError(f"line {number}: {first_line(error)}; {advice}") from None
        yield from rows


def separated_values(stream: BinaryIO, columns: list[str], *, delimiter: str) -> Iterator[Record]:
    """The rows below the header. ValueError if one has another number of fields."""
    csv.field_size_limit(2**31 - 1)  # the largest that every system takes; 128 KiB by default
    text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
    reader = csv.reader(text, delimiter=delimiter, strict=True)
    advice = 'put a text with commas, tabs, line ends or quotes in double quotes ("), with "" for "'
    header: list[str] = []
    begin = 1  # the line where the row begins
    try:
        for row in reader:
            header = header or row
            if len({*header}) < len(header):
                twice = next(name for name in header if header.count(name) > 1)
                raise ValueError(f"line {begin}: two columns are named {twice!r}: rename one")
            if row and len(row) != len(header):
                counts = f"{len(row)} field(s), the header {len(header)}"
                raise ValueError(f"line {begin} has {counts}: {advice}")
            if row and row is not header:
                yield dict(zip(header, row, strict=True))
            begin = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(f"line {begin}: {error}: {advice}") from None


def parquet(stream: BinaryIO, columns: list[str]) -> Iterator[Record]:
    from pyarrow.parquet import ParquetFile

    file = ParquetFile(stream, buffer_size=2**20)  # by default, a whole column is read at once
    names = file.schema_arrow.names
    if not set(columns) <= set(names):
        yield dict.fromkeys(names)
        return
    for batch in file.iter_batches(batch_size=32, columns=columns):  # few, as texts may be long
        yield from arrow_rows(batch)


def arrow_rows(batch: Any) -> Iterator[Record]:
    """The rows of a record batch of pyarrow, converted one by one to limit memory use."""
    for row in zip(*batch.columns, strict=True):
        yield {name: value.as_py() for name, value in zip(batch.column_names, row, strict=True)}


READERS: dict[str, Callable[[BinaryIO, list[str]], Iterable[Record]]] = {
    ".json": json_rows,
    ".jsonl": json_rows,
    ".ndjson": json_rows,
    ".csv": partial(separated_values, delimiter=","),
    ".tsv": partial(separated_values, delimiter="\t"),
    ".parquet": parquet,
}
"""For the endings of files with records, the functions that read them."""
