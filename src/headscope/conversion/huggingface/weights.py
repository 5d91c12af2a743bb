"""Reads the weights in a Hugging Face folder, which may come from a stranger.

The names and shapes of all tensors are known before any tensor is read. Then tensors are read in
parts, so that a model is loaded without a second copy of its weights.

Shapes: R rows, the length of the first axis of a tensor.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
from torch import Tensor

from headscope.conversion.huggingface.safetensors_file import SafetensorsFile
from headscope.data.hf_tokenizer import file_in, read_object
from headscope.errors import UserError

FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)

WHOLE = "model.safetensors"
"""The name of the file with all weights."""

INDEX = "model.safetensors.index.json"
"""If the weights are in several files, this file names them."""

SHARD = re.compile(r"[\w-][\w.-]*\.safetensors", re.ASCII)


class Weights:
    """All tensors in a folder, from one or several files. `shapes` are those of each tensor."""

    def __init__(self, files: Mapping[str, SafetensorsFile]) -> None:
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
        if path := file_in(folder, WHOLE):
            file = stack.enter_context(SafetensorsFile.open(path))
            yield Weights(dict.fromkeys(file.shapes, file))
        elif file_in(folder, INDEX):
            yield _sharded(folder, INDEX, stack)
        else:
            raise UserError(
                f"{folder} has no {WHOLE}: it has no weights that can be read without running "
                "code; if it has pytorch_model.bin, load it with transformers and save it again "
                "with save_pretrained"
            )


def _sharded(folder: Path, index: str, stack: ExitStack) -> Weights:
    names = read_object(folder, index).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise UserError(f"{folder / index} has no weight_map")
    files: dict[str, SafetensorsFile] = {}  # all tensors in the files, as transformers reads them
    for name in sorted(set(names.values())):
        if not SHARD.fullmatch(name):
            raise UserError(f"{folder / index} names {name[:80]!r}, which is not a file of weights")
        path = file_in(folder, name)
        if path is None:
            raise UserError(f"{folder / name} is missing, which {index} names")
        opened = stack.enter_context(SafetensorsFile.open(path))
        if twice := files.keys() & opened.shapes.keys():
            raise UserError(f"the tensor {min(twice)[:80]!r} is in {path} and in another file")
        if missing := {key for key in names if names[key] == name} - opened.shapes.keys():
            raise UserError(f"{path} has no tensor {min(missing)[:80]!r}, which {index} names")
        files |= dict.fromkeys(opened.shapes, opened)
    return Weights(files)
