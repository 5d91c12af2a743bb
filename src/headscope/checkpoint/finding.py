"""Finds the checkpoint file and the device that the configuration keys of a script select."""

import sys
from pathlib import Path

import torch

from headscope.checkpoint.file import SUFFIX, how_to_convert, read
from headscope.errors import UserError
from headscope.terminal import command, printable


def find(given: str | None, *, key: str = "checkpoint", outputs: Path = Path("outputs")) -> Path:
    """The path of the checkpoint file that `given` selects.

    `given` is a checkpoint file, a run folder or None. A run folder selects its best.safetensors.
    None selects the newest run (see `newest_run`).

    If best.safetensors is missing or damaged, last.safetensors of the same run is returned. If it
    is damaged, a message is printed on standard error. If `given` is a file, no other file is used
    instead. `key` is the configuration key of `given`, for error messages.

    Raises UserError if no checkpoint is found.
    """
    path = newest_run(outputs, key) if given is None else Path(given)
    if not path.is_dir():
        if not path.exists():
            raise UserError(f"{key}={path} does not exist: name a file or a run folder")
        return path
    best, last = (path / "checkpoints" / f"{name}{SUFFIX}" for name in ("best", "last"))
    if best.is_file() and last.is_file():
        try:
            read(best).weights()
        except UserError as error:
            read(last).weights()
            print(printable(f"{error}; using {last} instead"), file=sys.stderr)
            return last
    if best.is_file() or last.is_file():
        return best if best.is_file() else last
    if (path / "config.json").is_file():
        raise UserError(
            f"{key}={path} is not a run, but a folder with a config.json: convert a Hugging "
            f"Face model first: {how_to_convert()}"
        )
    raise UserError(f"{key}={path} {without_checkpoint(path)}; name another run or a file")


def newest_run(outputs: Path, key: str) -> Path:
    """The run that `outputs/latest` names. Without this file, prints a line on standard error, and
    returns the run with the newest checkpoint. Raises UserError if there is none."""
    latest = outputs / "latest"
    if latest.is_file():
        name = latest.read_text(encoding="utf-8", errors="replace").strip()
        if name and (outputs / name).is_dir():
            return outputs / name
        raise UserError(f"{latest} names {name!r}, which is not a run: give {key}=")
    saved = [*outputs.glob(f"**/checkpoints/[bl][ae]st{SUFFIX}")]  # best and last
    if not saved:
        train = command("train")
        raise UserError(
            f"there is no run in {outputs}/ yet: train one with {train}, or give {key}="
        )
    path = max(saved, key=lambda file: file.stat().st_mtime).parents[1]
    line = f"{latest} does not exist: using the newest run, {path} (or give {key}=)"
    print(printable(line), file=sys.stderr)
    return path


def without_checkpoint(folder: Path) -> str:
    """Why the run folder `folder` has no checkpoint, for a message."""
    if not folder.is_dir():
        return "is a file: give its run folder" if folder.exists() else "does not exist"
    return f"has no checkpoints/best{SUFFIX}: it is not a run, or it has not saved a checkpoint yet"


def pick_device(name: str) -> torch.device:
    """The device with this name: `cpu`, `cuda`, `mps`, or `auto`. `auto` selects the first of
    `cuda`, `mps` and `cpu` that is available.

    Raises UserError if this machine does not have the device.
    """
    kinds = ["cuda"] if torch.cuda.is_available() else []
    kinds += ["mps"] if torch.backends.mps.is_available() else []
    kinds += ["cpu"]
    try:
        device = torch.device(kinds[0] if name == "auto" else name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in kinds:
        raise UserError(
            f"device={name} is not available on this machine: choose one of auto, "
            f"{', '.join(kinds)}"
        )
    return device
