"""Finds equal documents. The memory for this does not grow with the number of documents."""

import hashlib
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from headscope.data.documents import Split
from headscope.errors import UserError

BITS: dict[Split, int] = {"train": 1, "validation": 2}
CACHE_KIB = 64 * 1024


def digest(chunks: Iterable[str | bytes]) -> bytes:
    """A hash of a text, of 16 bytes. Equal texts have equal hashes, and different texts have
    different ones with near certainty."""
    hashed = hashlib.blake2b(digest_size=16)
    for chunk in chunks:
        hashed.update(chunk if isinstance(chunk, bytes) else chunk.encode(errors="surrogatepass"))
    return hashed.digest()


class Duplicates:
    """The digests of all documents and the splits that they belong to, in a database on disk. The
    database is removed at the end of the `with` block."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __enter__(self) -> "Duplicates":
        self.file.unlink(missing_ok=True)
        with self._readable():
            self._open()
        return self

    def _open(self) -> None:
        self.database = sqlite3.connect(self.file, isolation_level=None)
        # Nothing has to survive the process.
        self.database.execute("PRAGMA journal_mode = OFF")
        self.database.execute("PRAGMA synchronous = OFF")
        self.database.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        self.database.execute(
            "CREATE TABLE documents (digest BLOB PRIMARY KEY, splits INTEGER) WITHOUT ROWID"
        )
        self.database.execute("BEGIN")

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:  # a full disk, for example
            raise UserError(f"{self.file} could not be written: {error}") from error

    def __exit__(self, *error: object) -> None:
        self.database.close()
        self.file.unlink(missing_ok=True)

    def add(self, digest: bytes, split: Split) -> bool:
        """Adds a document. Returns whether it is the first with this digest."""
        with self._readable():
            return self._add(digest, split)

    def _add(self, digest: bytes, split: Split) -> bool:
        values = (digest, BITS[split])
        if self.database.execute("INSERT OR IGNORE INTO documents VALUES (?, ?)", values).rowcount:
            return True
        self.database.execute(
            "UPDATE documents SET splits = splits | ? WHERE digest = ?", values[::-1]
        )
        return False

    def in_both(self) -> int:
        """The number of different documents that are in both splits."""
        both = sum(BITS.values())
        query = "SELECT count(*) FROM documents WHERE splits = ?"
        return self.database.execute(query, (both,)).fetchone()[0]
