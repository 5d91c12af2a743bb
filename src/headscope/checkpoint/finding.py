"""Which checkpoint, and which device, a person means."""

import sys
from pathlib import Path

import torch

from headscope.checkpoint.file import read
from headscope.errors import UserError
from headscope.terminal import printable


def find(given: str | None, *, key: str = "checkpoint", outputs: Path = Path("outputs")) -> Path:
    """The checkpoint that a person means: a file, a run folder (its best), or, for None, the best
    of the newest run, which `outputs/latest` names. `key` is where they named it.

    When a run's best.ckpt is damaged, it is its last.ckpt, and standard error says so. A file that
    is named is never replaced by another. Raises UserError when there is none.
    """
    if given is None:
        latest = outputs / "latest"
        if not latest.is_file():
            raise UserError(
                f"there is no run in {outputs}/ yet: python scripts/train.py makes one, or give "
                "checkpoint="
            )
        name = latest.read_text(encoding="utf-8", errors="replace").strip()
        path = outputs / name
        if not name or not path.is_dir():
            raise UserError(f"{latest} names {name!r}, which is no run: give checkpoint=")
    else:
        path = Path(given)
    if path.is_dir():
        best, last = (path / "checkpoints" / f"{name}.ckpt" for name in ("best", "last"))
        if best.is_file():
            return _last_if_damaged(best, last)
        if last.is_file():
            return last
        raise UserError(
            f"{path} has no checkpoints/best.ckpt: it is no run that got that far; {key}= may also "
            "name a file"
        )
    if not path.exists():
        raise UserError(f"{key}={path} does not exist")
    return path


def _last_if_damaged(best: Path, last: Path) -> Path:
    if last.is_file():
        try:
            read(best)
        except UserError as error:
            print(printable(f"{error}; using {last} instead"), file=sys.stderr)
            return last
    return best


def pick_device(name: str) -> torch.device:
    """The device that `auto`, `cpu`, `cuda` or `mps` means here.

    Raises UserError when this machine does not have it.
    """
    present = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if name == "auto":
        name = next(kind for kind, there in present.items() if there)
    if not present.get(name.partition(":")[0], False):
        raise UserError(
            f"device={name} is not here; there is: auto, "
            f"{', '.join(kind for kind, there in present.items() if there)}"
        )
    try:
        return torch.device(name)
    except RuntimeError:
        raise UserError(f"device={name} is no device: auto, cpu, cuda, cuda:0, mps") from None
