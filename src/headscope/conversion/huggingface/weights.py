"""Reads the weights in a Hugging Face folder, which may come from a stranger.

The names and shapes of all tensors are known before any tensor is read. Then tensors are read in
parts, so that a model is loaded without a second copy of its weights.

Shapes: R rows, the length of the first axis of a tensor.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from headscope.checkpoint import read_foreign
from headscope.conversion.huggingface.safetensors_file import SafetensorsFile
from headscope.data.hf_tokenizer import file_in, read_object
from headscope.errors import UserError

FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)

WHOLE = ("model.safetensors", "pytorch_model.bin")
"""The names of files with all weights, in the order in which they are looked for."""

INDEX = ".index.json"
"""If the weights are in several files, an additional file names them: model.safetensors.index.json
or pytorch_model.bin.index.json."""

OLD = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19"
"""The first bytes of a file that torch.save wrote before version 1.6: a pickled constant."""

SHARD = re.compile(r"[\w-][\w.-]*\.(safetensors|bin)", re.ASCII)


class WeightsFile(Protocol):
    """A file with tensors. `shapes` and `dtypes` are those of each tensor."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]: ...

    @property
    def dtypes(self) -> Mapping[str, torch.dtype]: ...

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """The rows from `start` to `stop` of a tensor, in memory of their own."""
        ...


class PickledFile:
    """A file that `torch.save` wrote. It is checked like our own checkpoints, and may contain only
    tensors, which are mapped from the file."""

    def __init__(self, path: Path) -> None:
        check_not_old(path)
        content = read_foreign(path)
        for name, tensor in content.items():
            if not isinstance(name, str) or not isinstance(tensor, Tensor):
                raise UserError(f"{path} is not a dictionary of tensors")
        self.tensors: dict[str, Tensor] = content
        self.shapes = {name: tuple(tensor.shape) for name, tensor in content.items()}
        self.dtypes = {name: tensor.dtype for name, tensor in content.items()}

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        return self.tensors[name][start:stop].clone()


def check_not_old(path: Path) -> None:
    """Raises UserError if a version of torch before 1.6 wrote the file."""
    try:
        with path.open("rb") as file:
            old = file.read(len(OLD)) == OLD
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from error
    if old:
        raise UserError(
            f"{path} has the format of torch before 1.6, which is not read: load the folder with "
            "from_pretrained of transformers, and save it with save_pretrained"
        )


class Weights:
    """All tensors in a folder, from one or several files. `shapes` are those of each tensor."""

    def __init__(self, files: Mapping[str, WeightsFile]) -> None:
        self.files = files
        self.shapes = {name: file.shapes[name] for name, file in files.items()}

    def rows(self, name: str, start: int = 0, stop: int | None = None) -> Tensor:
        """The rows from `start` to `stop` of a tensor, in memory of their own. Raises UserError if
        they are not floating-point numbers."""
        file = self.files[name]
        if file.dtypes[name] not in FLOATS:
            raise UserError(
                f"the weight {name[:80]!r} has the type {file.dtypes[name]}: quantized weights "
                "cannot be read"
            )
        return file.rows(name, start, self.shapes[name][0] if stop is None else stop)


@contextmanager
def open_weights(folder: Path) -> Iterator[Weights]:
    """Opens the files with weights in `folder`. Raises UserError if there are none, or if one is
    damaged, is not in the folder, or has a name with a path."""
    with ExitStack() as stack:
        for name in WHOLE:
            if path := file_in(folder, name):
                file = _open(path, stack)
                yield Weights(dict.fromkeys(file.shapes, file))
                return
            if file_in(folder, name + INDEX):
                yield _sharded(folder, name + INDEX, stack)
                return
        raise UserError(f"{folder} has no {' and no '.join(WHOLE)}: it has no weights")


def _open(path: Path, stack: ExitStack) -> WeightsFile:
    if path.suffix == ".safetensors":
        return stack.enter_context(SafetensorsFile.open(path))
    return PickledFile(path)


def _sharded(folder: Path, index: str, stack: ExitStack) -> Weights:
    names = read_object(folder, index).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise UserError(f"{folder / index} has no weight_map")
    files: dict[str, WeightsFile] = {}  # all tensors in the files, as transformers reads them
    for name in sorted(set(names.values())):
        if not SHARD.fullmatch(name) or not index.startswith(("model", "pytorch_model")):
            raise UserError(f"{folder / index} names {name[:80]!r}, which is not a file of weights")
        path = file_in(folder, name)
        if path is None:
            raise UserError(f"{folder / name} is missing, which {index} names")
        opened = _open(path, stack)
        if twice := files.keys() & opened.shapes.keys():
            raise UserError(f"the tensor {min(twice)[:80]!r} is in {path} and in another file")
        if missing := {key for key in names if names[key] == name} - opened.shapes.keys():
            raise UserError(f"{path} has no tensor {min(missing)[:80]!r}, which {index} names")
        files |= dict.fromkeys(opened.shapes, opened)
    return Weights(files)
