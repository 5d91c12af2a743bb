"""Writing checkpoints so that a kill at any moment leaves a whole one."""

import os
import shutil
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO

from headscope.checkpoint_file import read
from headscope.errors import UserError


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes beside the file and renames: the old checkpoint stands until the new one is whole."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None
    ) -> None:
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = _scratch(path)
        try:
            with scratch.open("wb") as file:
                torch.save(checkpoint, file)
                file.flush()
                os.fsync(file.fileno())
        except (OSError, RuntimeError) as error:  # torch hides what the system said
            scratch.unlink(missing_ok=True)
            free = shutil.disk_usage(path.parent).free
            raise UserError(
                f"{path} could not be written, {free:,} bytes are free there; the one before it "
                "is whole"
            ) from error
        scratch.replace(path)

    def load_checkpoint(self, path: str | Path, *args: Any, **options: Any) -> dict[str, Any]:
        """Lightning's own verifies no checksum."""
        return read(Path(path), mmap=False)


def copy_checkpoint(source: Path, target: Path) -> None:
    """A second name for a checkpoint, as atomically."""
    scratch = _scratch(target)
    with source.open("rb") as original, scratch.open("wb") as file:
        shutil.copyfileobj(original, file)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(target)


def _scratch(path: Path) -> Path:
    return path.with_name(f".{path.name}.part")
