"""Finds the checkpoint file and the device that the configuration keys of a script select."""

import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from headscope.errors import UserError
from headscope.terminal import command, note
from headscope.trained.checkpoint.file import SUFFIX, Stored, how_to_convert, read

KEPT = re.compile(rf"step_(\d{{6,}}){re.escape(SUFFIX)}", re.ASCII)
IMPORT = "import.json"
"""In a folder to which steps are imported: which ones, and from where."""
Check = Callable[[Stored], Any]
Say = Callable[[str], Any]


def find(given: str | None, *, key: str = "checkpoint", outputs: Path = Path("outputs")) -> Path:
    """The path of the checkpoint that `given` selects: a file, or best.safetensors of a run folder,
    by default the newest run (see `newest_run`). If best.safetensors is missing or damaged,
    last.safetensors of the same run is used. A damaged file is reported in a line. If there is no
    file `run@300`, this is step 300 of the run. `@300` is that of the newest run.

    `key` is the configuration key of `given`. Raises UserError if there is no such checkpoint.
    """
    given = given and os.path.expanduser(given)
    # For a name that is too long, the functions of os.path return False, and those of Path raise.
    if given is not None and "@" in Path(given).name and not os.path.exists(given):
        run, _, step = str(Path(given)).rpartition("@")
        if not run and key == "init_from":
            raise UserError(f"{key}={given}: name the run, because the newest one changes")
        return _find_step(Path(run) if run else newest_run(outputs, key), step, key)
    path = newest_run(outputs, key) if given is None else Path(given)
    if not os.path.isdir(path):
        if not os.path.exists(path):
            raise UserError(f"{key}={str(path)[:300]} does not exist: name a file or a run folder")
        return path
    named = (path / "checkpoints" / f"{name}{SUFFIX}" for name in ("best", "last"))
    if files := [file for file in named if file.is_file()]:
        return first_intact(files, f"{key}={path}", note).path
    if (path / "config.json").is_file():
        problem = f"{key}={path} is not a run, but a folder with a config.json"
        raise UserError(f"{problem}: convert a Hugging Face model first: {how_to_convert()}")
    raise UserError(f"{key}={path} {without_checkpoint(path)}; name another run or a file")


def _find_step(run: Path, step: str, key: str) -> Path:
    """The checkpoint of a run at `step`: a kept one, or last.safetensors or best.safetensors."""
    if not os.path.exists(run):
        raise UserError(f"{key}={str(run)[:300]} does not exist: name a run folder before @")
    files = steps_of(run)
    for name in ("last", "best"):
        file = _checkpoints(run) / f"{name}{SUFFIX}"
        with suppress(UserError):  # it is missing or damaged
            files.setdefault(read(file).step, file)
    if not re.fullmatch("[0-9]{1,18}", step) or int(step) not in files:
        steps = ", ".join(map(str, sorted(files))) or "none"
        given = f"{key}={run}@{step[:80]}"
        raise UserError(f"{given}: there is no such step; the run has kept: {steps}")
    file = files[int(step)]
    if (saved := read(file).step) != int(step):
        problem = f"{file} was renamed: its weights are those of step {saved}"
        raise UserError(f"{key}={run}@{step}: {problem}; rename it back, or name the file")
    return file


def steps_of(run: Path) -> dict[int, Path]:
    """The files with the weights that a run has kept (see `CheckpointSaver`), by their steps. `run`
    is the folder of the run, its folder `checkpoints`, or a file in this folder."""
    named = {KEPT.fullmatch(file.name): file for file in _checkpoints(run).glob(f"*{SUFFIX}")}
    return dict(sorted((int(match[1]), file) for match, file in named.items() if match))


def _checkpoints(run: Path) -> Path:
    if run.is_file():
        return run.parent
    return run if run.name == "checkpoints" else run / "checkpoints"


def first_intact(files: Iterable[Path], name: str, say: Say, check: Check = bool) -> Stored:
    """The first of the checkpoints `files` that is not damaged and for which `check` raises no
    UserError. Calls `say` with a line for each file before it. Raises UserError, which begins with
    `name`, if there is none."""
    problems: list[str] = []
    for file in files:
        try:
            stored = read(file)
            stored.weights()
            check(stored)
        except UserError as error:
            problems.append(str(error))
        else:
            for problem in problems:
                say(f"{problem}; using {file} instead, of step {stored.step:,}")
            return stored
    raise UserError(f"{name}: {'; '.join(problems)}")


def newest_run(outputs: Path, key: str) -> Path:
    """The finished run with the newest checkpoint or, if none has finished, the run with the newest
    checkpoint. A line reports a newer run that has not finished. Raises UserError if there is no
    run."""
    saved = [file for file in outputs.glob(f"**/checkpoints/[bl][ae]st{SUFFIX}") if file.is_file()]
    saved.sort(key=lambda file: file.stat().st_mtime, reverse=True)
    if not saved:
        advice = f"train one with {command('train')}, or give {key}="
        raise UserError(f"there is no run in {outputs}/ yet: {advice}")
    runs = [file.parents[1] for file in saved]
    finished = (run for run in runs if (run / "summary.json").is_file())
    path = next(finished, runs[0])
    if path != runs[0]:
        advice = f"using the newest finished run, {path} (or give {key}={runs[0]})"
        note(f"{runs[0]} has not finished: {advice}")
    return path


def without_checkpoint(folder: Path) -> str:
    """Why the run folder `folder` has no checkpoint, for a message."""
    if not folder.is_dir():
        return "is a file: give its run folder" if folder.exists() else "does not exist"
    if (folder / IMPORT).is_file():
        return "is an import that has not finished (repeat its command)"
    return f"has no checkpoints/best{SUFFIX}: it is not a run, or it has not saved a checkpoint yet"


def is_model_folder(path: Path) -> bool:
    """Whether `path` is a folder with a config.json, as transformers writes it."""
    return os.path.isfile(path / "config.json")


def pick_device(name: str) -> torch.device:
    """The device with this name: `cpu`, `cuda`, `mps`, or for `auto` the first of `cuda`, `mps` and
    `cpu` that is available. Raises UserError if this machine does not have the device."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    kinds = [*(kind for kind in available if available[kind]), "cpu"]
    with suppress(RuntimeError):
        device = torch.device(kinds[0] if name == "auto" else name)
        if device.type in kinds:
            return device
    advice = f"choose one of auto, {', '.join(kinds)}"
    raise UserError(f"device={name} is not available on this machine: {advice}")
