"""Writes a folder atomically."""

import glob
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from filelock import FileLock, Timeout

from headscope.errors import UserError
from headscope.files import cannot_write, flush_to_disk

LOCK = ".lock"
"""A temporary folder with this file is in use as long as a process holds the lock."""


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder in a temporary folder next to `path`, which becomes `path` when the `with` block
    ends. If the block raises an exception, it is removed. What a killed process left is removed
    when the next folder of that name is written. So `path` never contains half of the files.

    Raises UserError if `path` already exists or cannot be written.
    """
    if path.exists() or path.is_symlink():
        raise UserError(f"output={path} already exists: name a new folder")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for old in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
            with suppress(Timeout), FileLock(old / LOCK, timeout=0):
                shutil.rmtree(old, ignore_errors=True)
        place: Any = {"dir": path.parent, "prefix": f".{path.name}.", "suffix": ".part"}
        with TemporaryDirectory(**place) as scratch, FileLock(Path(scratch, LOCK)):
            new = Path(scratch, path.name)
            new.mkdir()
            yield new
            for file in new.rglob("*"):
                if file.is_file():
                    flush_to_disk(file)
            new.rename(path)
    except OSError as error:
        raise UserError(cannot_write(path, error)) from error
