"""Files that are never half-written, and JSON files that may be damaged or hostile."""

import errno
import json
import math
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from headscope.errors import UserError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""The system's errors that mean: more than there is room for."""

LARGEST_JSON = 2**25
"""Bytes. The largest JSON file of headscope is a tokenizer, of GPT-2 one MB. Parsed, it may take
20 times as much memory."""


def write_atomically(path: Path, text: str) -> None:
    """Replace `path` by `text` in UTF-8. Raises UserError when it cannot be written."""
    content = text.encode()
    with replacing(path, size=len(content)) as file:
        file.write(content)


@contextmanager
def replacing(path: Path, *, size: int = 0) -> Iterator[IO[bytes]]:
    """A new file beside `path` that takes its place when the block ends, or is removed when the
    block fails: at every moment `path` is the old file or the whole new one.

    `size` is what will be written, in bytes, as far as it is known: the message names it.

    Raises UserError when the file cannot be written.
    """
    scratch = path.with_name(f".{path.name}.{os.getpid()}.part")  # two processes may write at once
    try:
        with scratch.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    except OSError as error:
        _remove(scratch)  # first: the message names the space that is free without it
        raise UserError(cannot_write(path, error, size=size)) from error
    finally:
        _remove(scratch)


def _remove(scratch: Path) -> None:
    with suppress(OSError):  # renamed already, or never made
        scratch.unlink()


def cannot_write(path: Path, error: OSError, *, size: int) -> str:
    """Why `path` could not be written, in one line that names the space needed and free."""
    reason = f"{path} could not be written: {error.strerror or error}"
    if error.errno not in FULL:
        return reason
    free = shutil.disk_usage(path.parent).free
    needs = f"it needs at least {size:,} bytes, and " if size else ""
    return f"{reason}; {needs}{free:,} are free there"


def read_json(path: Path) -> Any:
    """What is in a JSON file. None when there is no such file, or it is damaged, too large, or not
    a regular file."""
    try:
        return parsed(path)
    except (OSError, ValueError):
        return None


def parsed(path: Path) -> Any:
    """The same. Raises OSError or ValueError with the reason."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise ValueError(f"{path.name} is not a regular file")
    if found.st_size > LARGEST_JSON:
        raise ValueError(f"{path.name} has {found.st_size:,} bytes")
    try:
        return json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)
    except RecursionError:
        raise ValueError(f"{path.name} is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def json_text(content: Any, *, indent: int | None = None) -> str:
    """`content` as JSON. NaN and infinity, which JSON does not have, become null."""
    return json.dumps(_finite(content), indent=indent, allow_nan=False)


def _finite(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content
