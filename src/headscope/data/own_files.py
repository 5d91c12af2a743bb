"""The user's own files as a corpus."""

import glob
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, islice
from pathlib import Path

from headscope.data.corpus import (
    Corpus,
    Document,
    Wanted,
    digest,
    hold_out,
    one_document,
    pieces,
)
from headscope.data.records import Template, format_of, records
from headscope.data.text_file import OPEN, file_sha256, text_chunks
from headscope.errors import UserError


class TextFiles(Corpus):
    """The user's own files. `path` is a file, a glob pattern or a folder.

    A text file in UTF-8 is one document. In a JSON Lines, CSV or Parquet file, each row is a
    document: see `Template` for `column` and `template`. Files may be compressed. From a folder,
    all text files are read, or if it has none, all files with rows, also those in subfolders.

    Every tenth document, in the order of file names, is held out for validation. If there are fewer
    than ten, the last one is. If there is only one, the last tenth of its characters is held out.

    With `deduplicate`, only the first of several equal documents is kept.

    Raises UserError if no file is found, or if a file is not text.
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
        if not path:
            raise UserError("data.path= is empty: name a file, a folder or a glob")
        try:
            path.encode()
        except UnicodeEncodeError:
            raise UserError(
                f"data.path={path!a} is not valid UTF-8: rename the file or folder"
            ) from None
        self.path = path
        self.template = Template(column, template)
        self.deduplicate = deduplicate
        target = Path(path)
        if target.is_dir():
            self.files = _files_in(target)
        elif target.is_file():
            self.files = [target]
        else:
            matches = sorted(Path(name) for name in glob.glob(path, recursive=True))
            self.files = [file for file in matches if file.is_file()]
        if not self.files:
            problem = "is no file, folder or glob"
            if target.is_dir():
                problem = "has no .txt, .jsonl, .csv or .parquet file in it"
            raise UserError(f"data.path={path} {problem}")

    def fingerprint(self) -> str:
        hashes = "".join(map(file_sha256, self.files))
        formats = [format_of(file) for file in self.files]
        if any(formats):
            hashes += json.dumps([formats, self.template.parts])
        return hashlib.sha256((hashes + "unique" * self.deduplicate).encode()).hexdigest()

    def documents(self, wanted: Wanted = lambda split: True) -> Iterator[Document]:
        texts = self._texts()
        first = list(islice(texts, 2))
        if not first:
            raise UserError(f"data.path={self.path} is empty")
        if len(first) == 1:
            # The text is read twice, because its last tenth begins at a place that depends on its
            # length.
            _, chunks = first[0]
            characters = sum(map(len, chunks))
            _, chunks = next(self._texts())
            yield from one_document(chunks, characters)
            return
        for split, (compute_digest, chunks) in hold_out(chain(first, texts)):
            yield Document(split, pieces(chunks), compute_digest)

    def size(self) -> int | None:
        plain = all(
            format_of(file) is None and file.suffix.lower() not in OPEN for file in self.files
        )
        return sum(file.stat().st_size for file in self.files) if plain else None

    def _texts(self) -> Iterator[tuple[Callable[[], bytes], Iterable[str]]]:
        """For each document, a function that computes its digest, and its text in chunks."""
        for file in self.files:
            if format_of(file):
                for record in records(file, self.template.columns):
                    if text := self.template.text(record, str(file)):
                        yield partial(digest, [text]), [text]
                continue
            chunks = text_chunks(file)
            for begin in chunks:  # a file without text is no document
                yield partial(_digest_of, file), chain([begin], chunks)
                break


def _digest_of(file: Path) -> bytes:
    return digest(text_chunks(file))


def _files_in(folder: Path) -> list[Path]:
    """All text files below a folder, or if there are none, all files with rows."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    endings = (".txt", *(f".txt{ending}" for ending in OPEN))
    return [file for file in files if file.name.endswith(endings)] or [
        file for file in files if format_of(file)
    ]
