"""Translates between Lightning's checkpoints, which are nested dictionaries, and our files. The
state of the optimizer is a dictionary of tensors by name (see `CombinedOptimizer`), without its
learning rates: those of the configuration are valid."""

import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning
from lightning.fabric.plugins import TorchCheckpointIO
from torch import Tensor

from headscope.errors import UserError
from headscope.files import is_plain, new_file
from headscope.trained.checkpoint import Stored, read, write
from headscope.trained.checkpoint.file import SUFFIX

OF_LIGHTNING = {"state_dict", "optimizer_states", "lr_schedulers", "callbacks", "loops", "epoch"}
OF_LIGHTNING |= {"global_step", "pytorch-lightning_version", "language_model"}
"""The entries of a checkpoint that Lightning and LanguageModel make. Callbacks may add others."""

TENSOR = "tensor of a callback"  # the only key of a dictionary that stands for the tensor it names


class SafetensorsIO(TorchCheckpointIO):
    """Writes and reads checkpoints of headscope. `contents` is plain data that each of them gets.
    Raises UserError if the file cannot be written, or is damaged."""

    def __init__(self, contents: Mapping[str, Any]) -> None:
        self.contents = contents
        self.folders: set[Path] = set()  # in which this process has written

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None
    ) -> None:
        tensors, data = tensors_and_data(checkpoint)
        write(Path(path), tensors, {**self.contents, **data})
        self.folders.add(Path(path).parent.resolve())

    def remove_checkpoint(self, path: str | Path) -> None:
        """Removes a checkpoint from a folder in which this process has written one. Lightning's
        ModelCheckpoint calls this with paths from its restored state, which may be anyone's."""
        file = Path(path)
        if file.suffix == SUFFIX and file.is_file() and file.parent.resolve() in self.folders:
            file.unlink()

    def load_checkpoint(self, path: str | Path, *args: Any, **options: Any) -> dict[str, Any]:
        return lightning_checkpoint(read(Path(path)))


def tensors_and_data(checkpoint: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of Lightning's `checkpoint` by name, and its plain data. Without the state of an
    optimizer, the plain data has no entry `training`."""
    tensors = dict(checkpoint["state_dict"])
    data: dict[str, Any] = {"step": checkpoint["global_step"]}
    if "optimizer_states" in checkpoint:
        [state] = checkpoint["optimizer_states"]
        tensors |= {f"optimizer.{name}": tensor for name, tensor in state.items()}
        more = {key: value for key, value in checkpoint.items() if key not in OF_LIGHTNING}
        data["training"] = {
            "language_model": checkpoint["language_model"],
            "loops": checkpoint["loops"]["fit_loop"],
            "callbacks": saved_parts(checkpoint["callbacks"], "callbacks", tensors),
            "more": saved_parts(more, "more", tensors),
        }
    return tensors, data


def saved_parts(parts: Mapping[str, Any], group: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """The plain data that callbacks save. Their tensors go to `tensors`. Warns of other data."""
    saved = {}
    for name, part in parts.items():
        own: dict[str, Tensor] = {}
        plain = without_tensors(part, f"{group}.{name}", own)
        if is_plain(plain):
            saved[name] = plain
            tensors |= own
        else:
            what = "state of the callback" if group == "callbacks" else "entry"
            line = f"the {what} {name} is not saved in the checkpoint"
            warnings.warn(f"{line}: it must be plain data or tensors", stacklevel=2)
    return saved


def without_tensors(state: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """`state` with a dictionary in place of each tensor. The tensors are added to `tensors`."""
    if isinstance(state, Tensor):
        tensors[name] = state.detach().clone()  # it may be a weight, or a part of another tensor
        return {TENSOR: name}
    if isinstance(state, dict):
        return {
            key: without_tensors(value, f"{name}.{key}", tensors) for key, value in state.items()
        }
    if isinstance(state, list):
        return [without_tensors(value, f"{name}.{n}", tensors) for n, value in enumerate(state)]
    return state


def with_tensors(plain: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The inverse of `without_tensors`: puts the tensors back into the state."""
    if isinstance(plain, dict):
        if plain.keys() == {TENSOR}:
            return tensors[plain[TENSOR]]
        return {key: with_tensors(value, tensors) for key, value in plain.items()}
    return [with_tensors(value, tensors) for value in plain] if isinstance(plain, list) else plain


def lightning_checkpoint(stored: Stored) -> dict[str, Any]:
    """What Lightning restores, with copies of the tensors. Raises UserError if one is missing."""
    training, optimizer = stored.data["training"], "optimizer."
    tensors = {name: tensor.clone() for name, tensor in stored.tensors("").items()}
    try:
        states = with_tensors(training["callbacks"], tensors)
        more = with_tensors(training["more"], tensors)
    except (KeyError, TypeError) as error:
        raise UserError(f"{stored.path} is damaged: the tensor {error} is missing") from error
    return {
        **more,
        "state_dict": {n: tensor for n, tensor in tensors.items() if n.startswith("model.")},
        "optimizer_states": [
            {n[len(optimizer) :]: t for n, t in tensors.items() if n.startswith(optimizer)}
        ],
        "lr_schedulers": [],
        "epoch": 0,
        "global_step": stored.step,
        "pytorch-lightning_version": lightning.__version__,
        "callbacks": states,
        "language_model": training["language_model"],
        "loops": {"fit_loop": training["loops"]},
    }


def copy_checkpoint(source: Path, target: Path) -> None:
    """Copies a checkpoint atomically. Raises UserError when the copy cannot be written."""
    with new_file(target, size=source.stat().st_size) as copy:
        shutil.copyfile(source, copy)
