"""Writes a folder atomically."""

import glob
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from filelock import FileLock, Timeout

from headscope.errors import UserError
from headscope.files import cannot_write, flush_to_disk

LOCK = ".lock"
"""A temporary folder with this file is in use as long as a process holds the lock."""


@contextmanager
def new_folder(path: Path, *, size: int = 0) -> Iterator[Path]:
    """A temporary folder next to `path`, which is renamed to `path` when the `with` block ends. If
    the block raises an exception, the folder is removed. What a killed process left is removed when
    the next folder of that name is written. So `path` never contains half of the files.

    Raises UserError if `path` already exists or cannot be written. For this message, `size` is the
    number of bytes that the folder needs at least.
    """
    if path.exists() or path.is_symlink():
        raise UserError(f"output={path} already exists: name a new folder")
    scratch = path.with_name(f".{path.name}.{os.getpid()}.part")
    remove = partial(shutil.rmtree, scratch, ignore_errors=True)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for old in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
            with suppress(Timeout), FileLock(old / LOCK, timeout=0):
                shutil.rmtree(old, ignore_errors=True)
        scratch.mkdir()
        with FileLock(scratch / LOCK):
            yield scratch
        (scratch / LOCK).unlink(missing_ok=True)
        for file in scratch.rglob("*"):
            if file.is_file():
                flush_to_disk(file)
        scratch.rename(path)
    except OSError as error:
        remove()  # now, because the message shows the free space
        raise UserError(cannot_write(path, error, size=size)) from error
    finally:
        remove()
