"""Reads UTF-8 text files in pieces. If a file is not UTF-8 text, the error says what it may be.

CRLF and CR line ends become LF, and a byte order mark is removed. Sizes of texts in bytes are
counted after these changes.
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


def text_chunks(file: Path) -> Iterator[str]:
    """The text of a UTF-8 file in pieces of about 1 MB, with LF line ends. A file that ends in .gz,
    .bz2, .xz or .zst is decompressed. Raises UserError if the file is not UTF-8 text."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    newlines = io.IncrementalNewlineDecoder(decoder, translate=True)
    offset, ascii_so_far = 0, True
    with opened(file) as stream:
        data = stream.read(CHUNK_BYTES)
        problem = _other_format(data)
        if problem:
            raise UserError(f"{file} {problem}")
        while True:
            if b"\0" in data:
                raise UserError(
                    f"{file} has NUL bytes, the first at offset {offset + data.index(0)}: it is "
                    "not text, or it is damaged, UTF-16 or UTF-32: convert that with iconv -f "
                    "utf-16 -t utf-8 old > new; to remove the NUL bytes: tr -d '\\000' < old > new"
                )
            try:
                text = newlines.decode(data, final=not data)
            except UnicodeDecodeError as error:
                # The object of the error begins with the bytes that the decoder had kept.
                place = offset - (len(error.object) - len(data)) + error.start
                advice = _decoding_advice(error, ascii_so_far)
                byte = error.object[error.start]
                raise UserError(
                    f"{file} is not UTF-8: byte {byte:#04x} at offset {place}; {advice}"
                ) from None
            if text:
                yield text
            if not data:
                return
            offset += len(data)
            ascii_so_far = ascii_so_far and data.isascii()
            data = stream.read(CHUNK_BYTES)


CONTAINERS = {
    b"\x1f\x8b": "gzip-compressed: let its name end in .gz",
    b"PK\x03\x04": "a zip archive (or an Office document): unpack it, or save it as plain text",
    b"\xfd7zXZ\0": "xz-compressed: let its name end in .xz",
    b"BZh": "bzip2-compressed: let its name end in .bz2",
    b"\x28\xb5\x2f\xfd": "zstd-compressed: let its name end in .zst",
    b"%PDF-": "a PDF: convert it to text, for example with pdftotext",
}
"""For the first bytes of other file formats, the part of the error message that says what the file
is and what to do."""

BYTE_ORDER_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
"""The UTF-32 marks come first, because the first UTF-32 mark begins with a UTF-16 mark."""


def _other_format(data: bytes) -> str | None:
    """Returns the part of the error message that says what the file is and what to do, if the bytes
    are clearly not UTF-8 text. Otherwise returns None."""
    for magic, what in CONTAINERS.items():
        if data.startswith(magic):
            return f"is {what}"
    for mark, encoding in BYTE_ORDER_MARKS.items():
        if data.startswith(mark):
            return f"is {encoding.upper()}: convert it with iconv -f {encoding} -t utf-8 old > new"
    wide = _wide_encoding(data[: 2**16])
    if wide:
        return (
            f"looks like {wide.upper()} without a byte order mark: convert it with "
            f"iconv -f {wide} -t utf-8 old > new"
        )
    return None


def _wide_encoding(data: bytes) -> str | None:
    """The name of the encoding, if the bytes are UTF-16 or UTF-32 without a byte order mark.
    Otherwise None."""
    control_bytes = data.translate(None, delete=bytes(range(9, 256)))
    ascii_bytes = data.translate(None, delete=bytes([*range(9), *range(127, 256)]))
    # Text in other encodings has almost no control bytes. If most bytes are ASCII characters, the
    # data is ASCII text with stray NUL bytes.
    if len(control_bytes) <= len(data) / 100 or len(ascii_bytes) > len(data) * 0.7:
        return None
    # In most texts, the more significant byte of a code unit has fewer different values.
    # Little-endian encodings store it second, at the odd positions.
    order = "le" if len(set(data[1::2])) <= len(set(data[::2])) else "be"
    for bits in (32, 16):
        text = data.decode(f"utf-{bits}{order}", errors="ignore")
        readable = sum(char.isprintable() or char.isspace() for char in text)
        if readable > 0.95 * len(data) * 8 / bits:
            return f"utf-{bits}{order}"
    return None


def _decoding_advice(error: UnicodeDecodeError, ascii_before: bool) -> str:
    """Advice for the user about bytes that are not UTF-8, based on a guess about their encoding.
    `ascii_before` says whether all bytes before those of `error` were ASCII."""
    data = error.object
    if error.reason == "unexpected end of data":
        return "the file ends inside a character, so it is incomplete: get it again"
    if not ascii_before or not data[: error.start].isascii():
        return (
            "the file is UTF-8 up to there, so it is damaged: get it again, or remove the damaged "
            "bytes with iconv -c -f utf-8 -t utf-8 old > new"
        )
    encoding = "windows-1252"
    try:
        # The data may end inside a character, which the incremental decoder ignores.
        text = codecs.getincrementaldecoder("gb18030")().decode(data)
        non_ascii = [char for char in text if not char.isascii()]
    except UnicodeDecodeError:
        non_ascii = []
    chinese = sum("\u3000" <= char <= "\u9fff" for char in non_ascii)
    if non_ascii and chinese > len(non_ascii) * 0.8:
        encoding = "gb18030"
    return (
        f"it may be {encoding}: convert it with iconv -f {encoding} -t utf-8 old > new, check the "
        "result, and try another encoding if it is wrong"
    )


def file_sha256(file: Path) -> str:
    """The sha256 of a file in hexadecimal. Raises UserError if the file cannot be read."""
    with opened(file, decompress=False) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _open_zstd(stream: BinaryIO, mode: str) -> Any:
    # Slow to import, and needed only here. Unlike the package zstandard, pyarrow notices a file
    # that ends early.
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
    """Opens a regular file as a binary stream. A compressed file is decompressed. Raises UserError
    if the file cannot be read."""
    unpack = OPEN.get(file.suffix.lower()) if decompress else None
    try:
        if file.exists() and not file.is_file():  # reading a pipe could wait forever
            raise UserError(f"{file} is not a regular file")
        # A file of size 0 is not opened, because the files in /proc have size 0, and reading some
        # of them waits forever.
        with file.open("rb") if file.stat().st_size else io.BytesIO() as stream:
            if unpack is None:
                yield stream
            else:
                with unpack(stream, "rb") as unpacked:
                    yield unpacked
    except EOFError:
        raise UserError(f"{file} is incomplete: its compressed data ends early") from None
    except (OSError, zlib.error, lzma.LZMAError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{file} cannot be read: {reason}") from None
