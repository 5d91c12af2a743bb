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
    None selects the newest run, whose name is in the file `outputs/latest`.

    If best.safetensors is missing or damaged, last.safetensors of the same run is returned. If it
    is damaged, a message is printed on standard error. If `given` is a file, no other file is used
    instead. `key` is the configuration key of `given`, for error messages.

    Raises UserError if no checkpoint is found.
    """
    if given is None:
        latest = outputs / "latest"
        if not latest.is_file():
            raise UserError(
                f"there is no run in {outputs}/ yet: train one with {command('train')}, or "
                "give checkpoint="
            )
        name = latest.read_text(encoding="utf-8", errors="replace").strip()
        path = outputs / name
        if not name or not path.is_dir():
            raise UserError(f"{latest} names {name!r}, which is not a run: give checkpoint=")
    else:
        path = Path(given)
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


def without_checkpoint(folder: Path) -> str:
    """Why the run folder `folder` has no checkpoint, for a message."""
    if not folder.is_dir():
        return "is a file: give its run folder" if folder.exists() else "does not exist"
    if any((folder / "checkpoints").glob("*.ckpt")):
        return "was trained by an older version of headscope, whose .ckpt files cannot be opened"
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
