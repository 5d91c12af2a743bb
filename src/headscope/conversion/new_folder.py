"""Writes a folder atomically."""

import glob
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from headscope.errors import UserError
from headscope.files import SCRATCH, cannot_write, flush_to_disk, new_file

LOCK = ".lock"
"""A temporary folder with this file is in use as long as a process holds the lock."""


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Like `new_file`, for a folder that does not exist yet. What a killed process left is removed
    when the next folder of that name is written.

    Raises UserError if `path` already exists or cannot be written.
    """
    if path.exists() or path.is_symlink():
        raise UserError(f"output={path} already exists: name a new folder")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(cannot_write(path, error)) from error
    for left in path.parent.glob(f"{SCRATCH}*/{glob.escape(path.name)}/"):
        with suppress(OSError, Timeout), FileLock(left.with_name(LOCK), timeout=0):
            shutil.rmtree(left.parent, ignore_errors=True)
    with new_file(path) as new, FileLock(new.with_name(LOCK)):
        new.mkdir()
        yield new
        for file in new.rglob("*"):
            if file.is_file():
                flush_to_disk(file)
