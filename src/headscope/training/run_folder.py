"""The folder of a training run: made by one process, locked by one, and left without leftovers."""

import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from headscope.errors import UserError

CHECKPOINTS = ("last.ckpt", "best.ckpt")
LOCK = ".lock"
EVENTS = ".headscope"
"""The end of the names of our event files, by which they are recognized."""


def is_run(folder: Path) -> bool:
    """Whether there is a checkpoint in `folder` that a run can go on from."""
    return any((folder / "checkpoints" / name).is_file() for name in CHECKPOINTS)


def make_new(path: str) -> str:
    """Make the folder `path`, or `path_2`, `path_3`, ... where it exists already; returns which.

    Two processes never get the same one.
    """
    number = 1
    while True:
        folder = Path(path if number == 1 else f"{path}_{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            if not folder.is_dir():
                raise
            number += 1
        else:
            return str(folder)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of the folder of a run or a comparison. The system releases it when the process
    ends, however it ends.

    Raises UserError when another process holds it.
    """
    # A singleton: this process may lock a folder twice.
    lock = FileLock(folder.resolve() / LOCK, timeout=0, is_singleton=True)
    try:
        lock.acquire()
    except Timeout:
        raise UserError(
            f"{folder}: another process is at work here; wait for it, or stop it first"
        ) from None
    except OSError as error:
        raise UserError(f"{folder / LOCK} cannot be locked: {error.strerror}") from error
    try:
        yield
    finally:
        lock.release()


def check_writable(folder: Path) -> None:
    """Raises UserError when a folder is where a run writes a file, or when a link leads what it
    writes out of its folder, which may come from a stranger."""
    for file in (*(folder / "checkpoints" / name for name in CHECKPOINTS), Path("outputs/latest")):
        if file.is_dir():
            raise UserError(f"{file} is a folder, and a run writes a file there: move it away")
    for name in ("checkpoints", "tensorboard", "tensorboard/hparams.yaml"):
        if (folder / name).is_symlink():
            raise UserError(
                f"{folder / name} is a link, and a run writes only in its own folder: put what it "
                "leads to in its place"
            )


def remove_leftovers(folder: Path) -> None:
    """Remove partial files and, of a run that ended before its first checkpoint, its event files:
    TensorBoard would show what that run logged beside what the next one logs.

    Only files that headscope writes are removed; see `EVENTS`.
    """
    partial = [
        *folder.glob(".summary.json.*.part"),
        *(folder / "checkpoints").glob(".*.ckpt.*.part"),
    ]
    for file in partial:
        file.unlink(missing_ok=True)  # a killed process was writing it
    if is_run(folder):
        return
    logs, checkpoints = folder / "tensorboard", folder / "checkpoints"
    events = list(logs.glob(f"events.out.tfevents.*{EVENTS}"))
    for file in events:
        file.unlink()
    if events:
        (logs / "hparams.yaml").unlink(missing_ok=True)
    for parent in (logs, checkpoints):
        if parent.is_dir() and not any(parent.iterdir()):
            parent.rmdir()


def remove_unused(folder: Path, *, keep: bool) -> None:
    """Remove the folder of a run that was not begun: one that holds Hydra's record alone. With
    `keep`, only that record."""
    if folder.is_dir() and {entry.name for entry in folder.iterdir()} <= {".hydra", LOCK}:
        shutil.rmtree(folder / ".hydra", ignore_errors=True)
        (folder / LOCK).unlink(missing_ok=True)
        if not keep:
            folder.rmdir()


def leave(folder: Path, *, keep: bool) -> None:
    """Remove what a stopped run was writing and, where it has no checkpoint, all that it wrote."""
    remove_leftovers(folder)
    remove_unused(folder, keep=keep)


def how_to_resume(folder: Path) -> str:
    return f"python scripts/train.py {shlex.quote(f'resume={shown(folder)}')}"


def shown(path: Path) -> Path:
    """A path as short as it can be from here."""
    here, path = Path.cwd(), path.resolve()
    return path.relative_to(here) if path.is_relative_to(here) else path
