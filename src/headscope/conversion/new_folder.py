"""Writes a folder atomically."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from headscope.errors import UserError
from headscope.files import cannot_write
from headscope.stop import on_stop


@contextmanager
def new_folder(path: Path, *, size: int = 0) -> Iterator[Path]:
    """A temporary folder next to `path`, which is renamed to `path` when the `with` block ends. If
    the block raises an exception or a signal ends the process, the folder is removed. So `path`
    never contains half of the files.

    Raises UserError if `path` already exists or cannot be written. For this message, `size` is the
    number of bytes that the folder needs at least.
    """
    if path.exists() or path.is_symlink():
        raise UserError(f"output={path} already exists: name a new folder")
    scratch = path.with_name(f".{path.name}.{os.getpid()}.part")
    remove = partial(shutil.rmtree, scratch, ignore_errors=True)
    with on_stop(remove):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            remove()  # what a killed process left, whose process id was the same
            scratch.mkdir()
            yield scratch
            for file in scratch.rglob("*"):
                if file.is_file():
                    with file.open("rb") as stream:
                        os.fsync(stream.fileno())
            scratch.rename(path)
        except OSError as error:
            remove()  # now, because the message shows the free space
            raise UserError(cannot_write(path, error, size=size)) from error
        finally:
            remove()
