"""Reads UTF-8 text files. If a file is not UTF-8 text, the error message says what it may be.

CRLF and CR line ends become LF, and a byte order mark is removed. Sizes of texts in bytes are
counted after these changes.
"""

import codecs
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedIOBase, BytesIO
from pathlib import Path

from headscope.errors import UserError


def read_text(file: Path) -> str:
    """The text of a UTF-8 file, with LF line ends. Raises UserError if the file is not UTF-8
    text."""
    with _opened(file) as stream:
        data = stream.read()
    problem = _other_format(data)
    if problem:
        raise UserError(f"{file} {problem}")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{file} is not UTF-8: byte {data[error.start]:#04x} at offset {error.start}; "
            f"{_decoding_advice(data, error)}"
        ) from None
    if "\0" in text:
        raise UserError(
            f"{file} has NUL bytes, the first at offset {data.index(0)}: it is not text, or it is "
            "damaged, UTF-16 or UTF-32: convert that with iconv -f utf-16 -t utf-8 old > new; to "
            "remove the NUL bytes: tr -d '\\000' < old > new"
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


def _decoding_advice(data: bytes, error: UnicodeDecodeError) -> str:
    """Advice for the user about bytes that are not UTF-8, based on a guess about their encoding."""
    if error.reason == "unexpected end of data":
        return "the file ends inside a character, so it is incomplete: get it again"
    if not data[: error.start].isascii():
        return (
            "the file is UTF-8 up to there, so it is damaged: get it again, or remove the damaged "
            "bytes with iconv -c -f utf-8 -t utf-8 old > new"
        )
    encoding = "windows-1252"
    try:
        non_ascii = [char for char in data.decode("gb18030") if not char.isascii()]
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
    with _opened(file) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def _opened(file: Path) -> Iterator[BufferedIOBase]:
    """Opens a regular file. Raises UserError if the file cannot be read."""
    try:
        if file.exists() and not file.is_file():  # reading a pipe could wait forever
            raise UserError(f"{file} is not a regular file")
        # A file of size 0 is not opened, because the files in /proc have size 0, and reading some
        # of them waits forever.
        with file.open("rb") if file.stat().st_size else BytesIO() as stream:
            yield stream
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}") from None
