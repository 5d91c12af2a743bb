"""Writes and reads checkpoint files.

A checkpoint is a safetensors file. Its tensors are the weights, such as `model.embedding.weight`,
and the state of the optimizer, such as `optimizer.embedding.weight.exp_avg`. Everything else is
plain data: one JSON text in the metadata of the file, with a CRC-32 for each tensor and, at its
beginning, of itself. So reading a checkpoint cannot run code.
"""

import json
import math
import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from headscope.config.parse import parse
from headscope.config.training import PRECISIONS, TrainConfig
from headscope.data.starting_texts import MAX_BYTES, MAX_TEXTS
from headscope.data.tokenizer import Tokenizer
from headscope.errors import UserError, first_line
from headscope.files import new_file
from headscope.nn.loss import Answers
from headscope.terminal import command

FORMAT = 13
SUFFIX = ".safetensors"

METADATA = "headscope"  # the only key: safetensors stores several keys in a random order

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)  # of weights

DICTIONARIES = ("config", "tokenizer", "checksums", "tied")
KINDS = {"added": list, "texts": list, "store": str, **dict.fromkeys(DICTIONARIES, dict)}
"""Entries of the plain data, and their types."""


def contents(
    config: TrainConfig,
    tokenizer: Tokenizer,
    store: str,
    precision: str,
    answers: Answers | None = None,
) -> dict[str, Any]:
    """The plain data of a checkpoint. `store` is the name of the token store."""
    return {
        "format": FORMAT,
        "config": config.kept(),
        "added": [*config.added()],
        "tokenizer": tokenizer.state(),
        "store": store,
        "precision": precision,
        "answers": answers and asdict(answers),
        "texts": [],  # a run replaces them
    }


def write(path: Path, tensors: Mapping[str, Tensor], data: Mapping[str, Any]) -> None:
    """Writes a checkpoint atomically: `data` has `contents` and `step`. May raise UserError."""
    unique, tied = without_ties(tensors)
    checksums = {name: checksum(name, tensor) for name, tensor in unique.items()}
    text = json.dumps({**data, "checksums": checksums, "tied": tied}, allow_nan=False)
    metadata = {METADATA: f"{zlib.crc32(text.encode()):08x}{text}"}
    size = sum(tensor.nbytes for tensor in unique.values())
    with new_file(path, size=size, parents=True) as file:
        file.touch()
        mode = file.stat().st_mode
        try:
            save_file(unique, file, metadata)
            with safe_open(file, framework="pt"):
                pass  # the tokenizer may be too large for the header of a safetensors file
        except SafetensorError as error:
            if number := re.search(r"os error (\d+)", str(error)):
                raise OSError(int(number[1]), os.strerror(int(number[1]))) from error
            raise UserError(f"{path} cannot be written: {first_line(error)}") from error
        file.chmod(mode)  # safetensors lets only its owner read it


def without_ties(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Returns two dictionaries: the tensors, contiguous on the CPU, and the ties. A tensor that
    shares the memory of an earlier one, such as a tied output head, is only in the second, which
    maps its name to that of the earlier one."""
    unique: dict[str, Tensor] = {}
    tied: dict[str, str] = {}
    names: dict[Any, str] = {}
    for name, tensor in tensors.items():
        place = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        first = names.setdefault(place, name) if tensor.numel() else name
        if first == name:
            unique[name] = tensor.detach().cpu().contiguous()
        else:
            tied[name] = first
    return unique, tied


def checksum(name: str, tensor: Tensor) -> int:
    """The CRC-32 of a contiguous tensor: of its name, dtype, shape and data."""
    start = f"{name} {tensor.dtype} {list(tensor.shape)} "
    data = tensor.reshape(-1).view(torch.uint8).numpy().data
    return zlib.crc32(data, zlib.crc32(start.encode()))


@dataclass(frozen=True)
class Stored:
    """A checkpoint file that is open for reading. `data` has the entries of `contents`, `step` and,
    if the run can be resumed from it, `training`."""

    path: Path
    data: dict[str, Any]
    file: Any = field(repr=False)

    @property
    def step(self) -> int:
        return self.data["step"]

    @property
    def run_folder(self) -> Path:
        """The folder of the run that saved the file."""
        return self.path.parent.parent

    @property
    def config(self) -> TrainConfig:
        """The configuration without callbacks. Raises UserError if a key is missing, unknown or of
        a wrong type. A part that it may not name raises UserError now, or when it is built."""
        plain = {key: value for key, value in self.data["config"].items() if key != "callbacks"}
        try:
            return parse(TrainConfig, plain, composed=False)
        except UserError as error:
            raise UserError(f"{self.path} cannot be opened: {error}") from error

    @property
    def answers(self) -> Answers | None:
        """What the losses of the run count, if not all tokens."""
        return self.data["answers"] and Answers(**self.data["answers"])

    def weights(self) -> dict[str, Tensor]:
        """The state dict of the model. Raises UserError if a weight is damaged, NaN or infinite."""
        weights = self.tensors("model.")
        for name, weight in weights.items():
            if weight.dtype not in DTYPES:
                raise damaged(self.path, ValueError(f"{name[:80]} has the type {weight.dtype}"))
            if not is_finite(weight.float() if weight.dtype is torch.float64 else weight):
                problem = f"{self.path} cannot be used: its weights are not finite, {name[:80]}"
                raise UserError(f"{problem}: training diverged; choose an earlier checkpoint")
        return weights

    def tensors(self, prefix: str) -> dict[str, Tensor]:
        """The tensors whose names begin with `prefix`, by the rest of their names, memory-mapped.
        Raises UserError if one of them is damaged."""
        checksums, tied = self.data["checksums"], self.data["tied"]
        try:
            tensors = {name: self._verified(name) for name in checksums if name.startswith(prefix)}
            tensors |= {name: tensors[own] for name, own in tied.items() if name.startswith(prefix)}
        except (ValueError, KeyError, TypeError, SafetensorError) as error:
            raise damaged(self.path, error) from error
        return {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}

    def _verified(self, name: str) -> Tensor:
        tensor = self.file.get_tensor(name)
        if checksum(name, tensor) != self.data["checksums"][name]:
            raise ValueError(f"the tensor {name[:80]} has a wrong checksum")
        return tensor


def read(path: Path) -> Stored:
    """Opens a checkpoint. Its plain data is verified now, a tensor when it is read. Raises
    UserError if the file is missing, damaged, or not a checkpoint of headscope."""
    if not path.is_file():
        exists = "is not a file" if path.exists() else "does not exist"
        raise UserError(f"checkpoint {path} {exists}")
    if path.suffix != SUFFIX:
        advice = f"convert the model of another tool with {how_to_convert()}"
        if path.suffix == ".ckpt":
            advice = "load a file of Lightning with headscope.LanguageModel.load_from_checkpoint"
        raise UserError(f"{path} is no checkpoint of headscope, whose suffix is {SUFFIX}: {advice}")
    try:
        file = safe_open(path, framework="pt")
        data = plain_data((file.metadata() or {}).get(METADATA))
        if sorted(file.keys()) != sorted(data["checksums"]):
            raise ValueError("its names of tensors are damaged")
    except Exception as error:  # safetensors and json raise several kinds
        raise damaged(path, error) from error
    return Stored(path, data, file)


def plain_data(text: str | None) -> dict[str, Any]:
    """The plain data in the metadata of a file. Raises ValueError if it is damaged."""
    if text is None:
        raise ValueError(f"it was not written by headscope: to import a model, {how_to_convert()}")
    if f"{zlib.crc32(text[8:].encode()):08x}" != text[:8]:
        raise ValueError("its metadata has a wrong checksum")
    data = json.loads(text[8:])
    if data["format"] != FORMAT:
        raise ValueError("it was written by another version of headscope")
    for key, kind in KINDS.items():
        if type(data[key]) is not kind:
            raise ValueError(f"its entry {key} has the wrong type")
    if type(data["step"]) is not int or not 0 <= data["step"] < 2**53:
        raise ValueError(f"its step={str(data['step'])[:80]} is not a number of steps")
    if data["answers"] is not None:
        parse(Answers, data["answers"], "answers")
    long = [text for text in data["texts"] if len(text.encode()) > MAX_BYTES]
    if long or len(data["texts"]) > MAX_TEXTS:
        raise ValueError("its texts are too many, or too long")
    if data["precision"] not in PRECISIONS:
        raise ValueError(f"its precision={str(data['precision'])[:80]} is unknown")
    return data


def how_to_convert() -> str:
    """The command that converts the model of another tool."""
    return f"{command('convert')} source=... output=outputs/..."


def damaged(path: Path, error: Exception) -> UserError:
    reason = f"no entry {error}" if isinstance(error, KeyError) else first_line(error)
    return UserError(f"{path} is not a checkpoint, or is damaged: {reason[:300]}")


def is_finite(tensor: Tensor) -> bool:
    """Whether all elements are finite: neither NaN nor infinite."""
    if not tensor.is_floating_point() or not tensor.numel():
        return True
    # aminmax allocates no large tensor, and returns NaN if any element is NaN.
    lowest, highest = tensor.detach().aminmax()
    return math.isfinite(lowest) and math.isfinite(highest)
