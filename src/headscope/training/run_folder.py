"""Creates and locks the folder of a training run, and removes partial files."""

import itertools
import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from headscope.config.own_parts import parts_words
from headscope.config.parts import defaults_in_conf
from headscope.config.training import TrainConfig
from headscope.errors import UserError
from headscope.files import SCRATCH
from headscope.terminal import command

CHECKPOINTS = ("last.safetensors", "best.safetensors")

LOCK = ".lock"
OF_HYDRA = (".hydra", "train.log", "multirun.yaml")
ERROR = "error.txt"  # why a run of a sweep failed


def is_run(folder: Path) -> bool:
    """Whether `folder` contains a checkpoint of a run."""
    return any((folder / "checkpoints" / name).is_file() for name in CHECKPOINTS)


def make_new(path: str) -> str:
    """Creates the folder `path`, or if it exists `path_2`, or `path_3` and so on. Returns the path
    of the new folder. Two processes never get the same folder."""
    for number in itertools.count(1):
        folder = Path(path if number == 1 else f"{path}_{number}")
        with suppress(FileExistsError):
            folder.mkdir(parents=True)
            break
    return str(folder)


@contextmanager
def locked(folder: Path, *, say: Callable[[str], None] | None = None) -> Iterator[None]:
    """Inside the `with` block, the folder of a run is locked, at most until this process ends. If
    another process has locked it, says so with `say` and waits, or raises UserError without `say`.
    Raises OSError if the lock cannot be written."""
    # The lock is a singleton, so that this process can lock the same folder twice.
    lock = FileLock(folder.resolve() / LOCK, timeout=0, is_singleton=True)
    try:
        lock.acquire()
    except Timeout:
        used = f"{folder} is used by another process"
        if not say:
            raise UserError(f"{used}: wait until that ends, or stop it") from None
        say(f"{used}: waiting until that ends")
        lock.acquire(timeout=-1)
    try:
        yield
    finally:
        lock.release()


def check_writable(folder: Path) -> None:
    """Raises UserError if a symbolic link leads out of the run folder, which may come from a
    stranger: the run would write there."""
    for path in folder.rglob("*"):
        if path.is_symlink() and not path.resolve().is_relative_to(folder.resolve()):
            problem = f"{path} is a symbolic link to another folder"
            raise UserError(f"{problem}: replace it by a copy of its target")


def remove_leftovers(folder: Path) -> None:
    """Removes partial files of killed processes. Before the run's first checkpoint, also removes
    its kept steps, records of heads and event files, because they would be shown with those of the
    next run."""
    from headscope.trained.checkpoint import read, steps_of  # slow: they import torch
    from headscope.trained.records import FILE
    from headscope.training.loggers import event_files

    for place in (folder, folder / "checkpoints"):
        for left in place.glob(f"{SCRATCH}*"):
            shutil.rmtree(left, ignore_errors=True)
    if is_run(folder):
        return
    logs, checkpoints = folder / "tensorboard", folder / "checkpoints"
    events = event_files(logs)
    for file in (*events, checkpoints / FILE):
        file.unlink(missing_ok=True)
    if events:
        (logs / "hparams.yaml").unlink(missing_ok=True)
    for file in steps_of(folder).values():
        with suppress(UserError):  # not a checkpoint: the user's own file
            read(file)
            file.unlink()
    for parent in (logs, checkpoints):
        if parent.is_dir() and not any(parent.iterdir()):
            parent.rmdir()


def remove_unused(folder: Path) -> None:
    """Removes the folder of a run that did not start: it contains nothing but what Hydra wrote."""
    if not folder.is_dir() or folder.resolve() == Path.cwd():
        return
    if {entry.name for entry in folder.iterdir()} <= {*OF_HYDRA, LOCK}:
        shutil.rmtree(folder)
        if folder.parent.name == "outputs":
            with suppress(OSError):
                folder.parent.rmdir()  # if it is empty


def how_to_resume(folder: Path, config: TrainConfig) -> str:
    """The command that resumes the run in `folder`."""
    return command("train", *resume_words(folder, config))


def resume_words(folder: Path, config: TrainConfig) -> list[str]:
    """The words that resume the run in `folder`, also with what its checkpoint does not keep."""
    words = [f"resume={shown(folder)}", *parts_words(config.kept())]
    known = {each["choice"]: each for each in defaults_in_conf("logger").values()}
    chosen = [name for name, part in config.logger.items() if part and name in known]
    if chosen != ["tensorboard"]:
        words.append(f"logger=[{','.join(chosen)}]" if chosen else "~logger")
    for key, value in config.added().items():
        name = key.removeprefix("logger.")
        if name in chosen:
            for inside, each in value.items():
                words += leaves(f"{key}.{inside}", each) if each != known[name].get(inside) else []
        else:
            words += leaves(f"+{key}", value)
    return words


def leaves(key: str, value: Any) -> list[str]:
    """The words that set `key` to plain data."""
    if isinstance(value, dict) and value:
        return [word for name in value for word in leaves(f"{key}.{name}", value[name])]
    plain = isinstance(value, str) and re.fullmatch(r"[A-Za-z_/][\w./+-]*", value)
    if plain and value.lower() not in ("null", "true", "false", "nan", "inf"):
        return [f"{key}={value}"]
    return [f"{key}={json.dumps(value, ensure_ascii=False)}"]


def shown(path: Path) -> Path:
    """The path relative to the current folder, if it is inside, else the absolute path."""
    current, path = Path.cwd(), path.resolve()
    return path.relative_to(current) if path.is_relative_to(current) else path
