"""Reads UTF-8 text files in pieces. If a file is not UTF-8 text, the error says what it may be.

CRLF and CR line ends become LF, and a byte order mark is removed, before sizes are counted.
"""

import bz2
import codecs
import gzip
import hashlib
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from headscope.errors import UserError

CHUNK_BYTES = 2**20
"""Number of bytes that are read at a time."""

SAMPLE_BYTES = 2**14
"""Number of bytes from which the encoding is guessed."""


def text_chunks(file: Path) -> Iterator[str]:
    """The text of a UTF-8 file in pieces of about 1 MB, with LF line ends. A file that ends in .gz,
    .bz2, .xz or .zst is decompressed. Raises UserError if the file is not UTF-8 text."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    newlines = io.IncrementalNewlineDecoder(decoder, translate=True)
    offset = 0
    with opened(file) as stream:
        while True:
            data = stream.read(CHUNK_BYTES)
            if b"\0" in data:
                place = data.index(0)
                raise UserError(
                    f"{file} has NUL bytes, the first at offset {offset + place}; "
                    f"{_advice(data, place)}; to remove the NUL bytes: tr -d '\\000' < old > new"
                )
            try:
                text = newlines.decode(data, final=not data)
            except UnicodeDecodeError as error:
                # The object of the error begins with bytes that the decoder kept from before.
                offset -= len(error.object) - len(data)
                data, place = error.object, error.start
                raise UserError(
                    f"{file} is not UTF-8: byte {data[place]:#04x} at offset {offset + place}; "
                    f"{_advice(data, place)}; if it is only damaged, remove the damaged bytes with "
                    "iconv -c -f utf-8 -t utf-8 old > new"
                ) from None
            if text:
                yield text
            if not data:
                return
            offset += len(data)


def _advice(data: bytes, place: int) -> str:
    """Advice for the user about bytes that are not UTF-8 text at `place`."""
    from charset_normalizer import from_bytes

    start = max(0, place - SAMPLE_BYTES // 2)
    guess = from_bytes(data[start : start + SAMPLE_BYTES]).best()
    if guess is None or guess.encoding in ("ascii", "utf_8"):
        packed = f"a packed text ends in {'/'.join(OPEN)}"
        return f"it may be a binary file: convert it to text ({packed})"
    encoding = guess.encoding.replace("_le", "le").replace("_be", "be").replace("_", "-")
    return (
        f"it may be {encoding}: convert it with iconv -f {encoding} -t utf-8 old > new, check the "
        "result, and try another encoding if it is wrong"
    )


def file_sha256(file: Path) -> str:
    """The sha256 of a file in hexadecimal. Raises UserError if the file cannot be read."""
    with opened(file, decompress=False) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _open_zstd(stream: BinaryIO, mode: str) -> Any:
    # Slow to import. Unlike the package zstandard, it notices a file that ends early.
    import pyarrow

    return io.BufferedReader(pyarrow.CompressedInputStream(stream, "zstd"))


OPEN: dict[str, Callable[..., Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": _open_zstd,
}
"""For the endings of compressed files, the functions that decompress a stream."""


@contextmanager
def opened(file: Path, *, decompress: bool = True) -> Iterator[Any]:
    """A file as a stream of bytes, decompressed. Raises UserError if it cannot be read."""
    unpack = OPEN.get(file.suffix.lower()) if decompress else None
    try:
        with file.open("rb") as raw, unpack(raw, "rb") if unpack else raw as stream:
            yield stream
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{file} cannot be read: {reason}") from None
