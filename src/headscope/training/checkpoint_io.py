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
from headscope.files import new_file

TRAINING = ("callbacks", "running_loss", "threads", "processes", "logged")
"""The entries of Lightning's checkpoint that a resumed run needs, besides the weights and the state
of the optimizer. All of them are plain data."""


class SafetensorsIO(TorchCheckpointIO):
    """Writes and reads checkpoints of headscope. Reading verifies all checksums.

    Raises UserError if the file cannot be written, or is damaged.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None
    ) -> None:
        write(Path(path), *tensors_and_data(checkpoint))

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


def copy_checkpoint(source: Path, target: Path) -> None:
    """Copies a checkpoint atomically. Raises UserError when the copy cannot be written."""
    with new_file(target, size=source.stat().st_size) as copy:
        shutil.copyfile(source, copy)
