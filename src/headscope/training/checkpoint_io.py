"""Writes checkpoints atomically: if the process is killed while it saves, the previous checkpoint
remains complete."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO

from headscope.checkpoint.file import read
from headscope.errors import UserError
from headscope.files import cannot_write, replacing


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint to a temporary file, then renames the file. The old checkpoint is
    replaced only when the new checkpoint is complete.

    Raises UserError if the file cannot be written.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None
    ) -> None:
        path = Path(path)
        size = sum(tensor.nbytes for tensor in _tensors(checkpoint))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path, size=size) as file:
                torch.save(checkpoint, file)
        except OSError as error:
            raise UserError(cannot_write(path, error, size=size)) from error
        except UserError as error:
            raise UserError(f"{error}{previous_unchanged(path)}") from error

    def load_checkpoint(self, path: str | Path, *args: Any, **options: Any) -> dict[str, Any]:
        """Reads a checkpoint and verifies its checksums. Lightning's own method does not verify
        them."""
        return read(Path(path), mmap=False)


def previous_unchanged(path: Path) -> str:
    """The end of an error message. If an older checkpoint exists at `path`, the text says that this
    checkpoint is unchanged. Otherwise, the text is empty."""
    return "; the previous checkpoint of that name is unchanged" if path.is_file() else ""


def copy_checkpoint(source: Path, target: Path) -> None:
    """Copies a checkpoint atomically. Raises UserError when the copy cannot be written."""
    try:
        with source.open("rb") as original, replacing(target, size=source.stat().st_size) as file:
            shutil.copyfileobj(original, file)
    except UserError as error:
        raise UserError(f"{error}{previous_unchanged(target)}") from error


def _tensors(node: Any) -> Iterator[torch.Tensor]:
    """All tensors in nested dictionaries, lists and tuples."""
    if isinstance(node, torch.Tensor):
        yield node
    elif isinstance(node, dict):
        for value in node.values():
            yield from _tensors(value)
    elif isinstance(node, list | tuple):
        for value in node:
            yield from _tensors(value)
