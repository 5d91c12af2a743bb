"""Translates between Lightning's checkpoints, which are nested dictionaries, and our files.

The state of the optimizer is a dictionary of tensors by name (see `CombinedOptimizer`). It has no
learning rates: those of the configuration are valid.
"""

import shutil
from pathlib import Path
from typing import Any

import lightning
from lightning.fabric.plugins import TorchCheckpointIO
from torch import Tensor

from headscope.checkpoint import Stored, read, write
from headscope.errors import UserError
from headscope.files import replacing

TRAINING = ("callbacks", "running_loss", "threads", "processes", "logged")
"""The entries of Lightning's checkpoint that a resumed run needs, besides the weights and the state
of the optimizer. All of them are plain data."""


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint to a temporary file, then renames the file. The old checkpoint is
    replaced only when the new checkpoint is complete. Reading verifies all checksums.

    Raises UserError if the file cannot be written, or is damaged.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None
    ) -> None:
        write_checkpoint(Path(path), *tensors_and_data(checkpoint))

    def load_checkpoint(self, path: str | Path, *args: Any, **options: Any) -> dict[str, Any]:
        return lightning_checkpoint(read(Path(path)))


def tensors_and_data(checkpoint: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of Lightning's `checkpoint` by name, and its plain data. Without the state of an
    optimizer, the plain data has no entry `training`."""
    tensors = dict(checkpoint["state_dict"])
    data = checkpoint["headscope"] | {"step": checkpoint["global_step"]}
    if "optimizer_states" in checkpoint:
        [state] = checkpoint["optimizer_states"]
        tensors |= {f"optimizer.{name}": tensor for name, tensor in state.items()}
        data["training"] = {key: checkpoint[key] for key in TRAINING}
    return tensors, data


def write_checkpoint(path: Path, tensors: dict[str, Tensor], data: dict[str, Any]) -> None:
    """Writes a checkpoint, and its folder. Raises UserError if that is not possible."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, tensors, data)
    except OSError as error:
        raise UserError(f"{path} could not be written: {error.strerror or error}") from error
    except UserError as error:
        raise UserError(f"{error}{previous_unchanged(path)}") from error


def lightning_checkpoint(stored: Stored) -> dict[str, Any]:
    """The checkpoint that Lightning restores, with tensors in memory of their own."""
    tensors = {
        prefix: {name: tensor.clone() for name, tensor in stored.tensors(prefix).items()}
        for prefix in ("model.", "optimizer.")
    }
    return {
        "state_dict": {f"model.{name}": weight for name, weight in tensors["model."].items()},
        "optimizer_states": [tensors["optimizer."]],
        "lr_schedulers": [],
        "epoch": 0,
        "global_step": stored.step,
        "pytorch-lightning_version": lightning.__version__,
        **{key: stored.data["training"][key] for key in TRAINING},
    }


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
