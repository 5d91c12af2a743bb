"""Writing files so that they are never half-written."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from headscope.errors import UserError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""The system's errors that mean: more than there is room for."""


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
