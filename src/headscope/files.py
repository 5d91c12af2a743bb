"""Writes files atomically, and reads JSON files that may be damaged or malicious."""

import errno
import glob
import json
import math
import os
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

from filelock import FileLock, Timeout

from headscope.errors import UserError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers for a full disk, an exceeded quota and a file that is too large."""

SCRATCH = ".writing-"
"""The beginning of the names of temporary folders. A process that is killed leaves one."""

LOCK = ".lock"
"""A temporary folder with this file is in use as long as a process holds the lock."""


def write_atomically(path: Path, text: str) -> None:
    """Replaces the content of a file by `text`, in UTF-8. Raises UserError as `new_file` does."""
    content = text.encode()
    with replacing(path, size=len(content)) as file:
        file.write(content)


@contextmanager
def replacing(path: Path, *, size: int = 0) -> Iterator[IO[bytes]]:
    """Like `new_file`, with the new file open for writing."""
    with new_file(path, size=size) as new, new.open("wb") as file:
        yield file


@contextmanager
def new_file(path: Path, *, size: int = 0, parents: bool = False) -> Iterator[Path]:
    """The path of a file to write, in a temporary folder next to `path`. When the `with` block
    ends, the file is moved to `path`. If the block raises an exception, it is removed. So `path` is
    always the complete old file or the complete new file, also after a power cut. With `parents`,
    the folders above it are made.

    Raises UserError when the file cannot be written. If the disk is full, the message has `size`,
    the expected size in bytes, and how much space is free.
    """
    try:
        if parents:
            path.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=path.parent, prefix=SCRATCH, ignore_cleanup_errors=True) as at:
            new = Path(at, path.name)
            yield new
            flush_to_disk(new)
            new.replace(path)
        flush_to_disk(path.parent)
    except (OSError, RuntimeError) as error:
        # When writing fails, torch.save raises RuntimeError while it handles the file's OSError.
        cause = error if isinstance(error, OSError) else error.__context__
        if not isinstance(cause, OSError):
            raise
        reason = f"{path} could not be written: {cause.strerror or cause}"
        if cause.errno in FULL:
            needed = f"it needs at least {size:,} bytes, and " if size else ""
            reason += f"; {needed}{shutil.disk_usage(path.parent).free:,} bytes are free there"
        raise UserError(reason) from error


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Like `new_file`, for a folder, which must not exist yet. What a killed process left is
    removed when the next folder of that name is written."""
    if path.exists() or path.is_symlink():
        raise UserError(f"output={path} already exists: name a new folder")
    for left in path.parent.glob(f"{SCRATCH}*/{glob.escape(path.name)}/"):
        with suppress(OSError, Timeout), FileLock(left.with_name(LOCK), timeout=0):
            shutil.rmtree(left.parent, ignore_errors=True)
    with new_file(path, parents=True) as new, FileLock(new.with_name(LOCK)):
        new.mkdir()
        yield new
        for file in new.rglob("*"):
            if file.is_file():
                flush_to_disk(file)


def flush_to_disk(path: Path) -> None:
    """Waits until the content of a file, or the names in a folder, are on the disk."""
    if os.name != "posix" and path.is_dir():
        return  # Windows cannot open a folder
    descriptor = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_json(path: Path) -> Any:
    """The content of a JSON file. Returns None if the file does not exist or is damaged."""
    try:
        return parse_json(path)
    except (OSError, ValueError):
        return None


def parse_json(path: Path) -> Any:
    """Like `read_json`, but raises OSError or ValueError with the reason."""
    try:
        return json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)
    except RecursionError:
        raise ValueError(f"{path.name} is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def write_summary(folder: Path, summary: dict[str, Any]) -> None:
    """Writes summary.json, the results of a finished run, with a checksum of all of them."""
    content = summary | {"crc32": summary_checksum(summary)}
    write_atomically(folder / "summary.json", json_text(content, indent=2) + "\n")


def read_summary(folder: Path) -> dict[str, Any] | None:
    """The content of summary.json, or None if it is missing or damaged: the run is unfinished."""
    summary = read_json(folder / "summary.json")
    if not isinstance(summary, dict):
        return None
    return summary if summary.pop("crc32", None) == summary_checksum(summary) else None


def summary_checksum(summary: dict[str, Any]) -> int:
    return zlib.crc32(json_text(summary).encode())


def is_plain(content: Any) -> bool:
    """Whether `content` is plain data, which JSON keeps unchanged, without NaN and infinity."""
    try:
        return json.loads(json.dumps(content, allow_nan=False)) == content
    except (TypeError, ValueError, RecursionError):
        return False


def json_text(content: Any, *, indent: int | None = None) -> str:
    """`content` as JSON. NaN and infinity become null, because JSON cannot represent them."""
    return json.dumps(_finite(content), indent=indent, allow_nan=False)


def _finite(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content
