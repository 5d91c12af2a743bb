"""Reads tensors from a safetensors file, which may come from a stranger.

The file begins with the size of its header (8 bytes) and the header, a JSON object that gives the
type, the shape and the position of each tensor. The raw numbers follow. The package `safetensors`
maps the file to memory, where its pages count like a second copy of the weights, so this module
reads the file itself.
"""

import json
import math
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from headscope.errors import UserError
from headscope.files import MAX_JSON_BYTES

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}

MAX_AXES = 8


class SafetensorsFile:
    """An open safetensors file whose header has been checked: each tensor has as many bytes as its
    type and shape need, and the tensors cover the file without overlap."""

    def __init__(self, file: IO[bytes], path: Path) -> None:
        self.file = file
        self.path = path
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.dtypes: dict[str, torch.dtype] = {}
        self.starts: dict[str, int] = {}
        size = path.stat().st_size
        try:
            (length,) = struct.unpack("<Q", file.read(8))
            if not 2 <= length <= min(size - 8, MAX_JSON_BYTES):
                raise ValueError(f"its header has {length:,} bytes")
            header = json.loads(file.read(length))
            self._read(header, begin=8 + length, size=size)
        except (ValueError, struct.error, RecursionError) as error:  # ValueError: also JSON, UTF-8
            reason = " ".join(str(error).split())[:200]
            raise UserError(f"{path} is not a safetensors file, or is damaged: {reason}") from None

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator["SafetensorsFile"]:
        """Raises UserError if the file cannot be read or is damaged."""
        try:
            file = path.open("rb")
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror or error}") from error
        with file:
            yield cls(file, path)

    def _read(self, header: Any, *, begin: int, size: int) -> None:
        """Raises ValueError if the header is not valid."""
        if not isinstance(header, dict):
            raise ValueError("its header is not an object")
        ends = [begin]
        spans = []
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            match entry:
                case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [start, end]}:
                    pass
                case _:
                    raise ValueError(f"the entry {name[:80]!r} of its header is not valid")
            numbers = [*shape, start, end]
            plain = all(type(number) is int and 0 <= number < 2**63 for number in numbers)
            if dtype not in DTYPES or len(shape) > MAX_AXES or not plain:
                raise ValueError(f"the entry {name[:80]!r} of its header is not valid")
            if end - start != math.prod(shape) * DTYPES[dtype].itemsize:
                raise ValueError(f"{name[:80]!r} has another number of bytes than its shape needs")
            self.shapes[name], self.dtypes[name] = tuple(shape), DTYPES[dtype]
            self.starts[name] = begin + start
            spans.append((begin + start, begin + end))
        for start, end in sorted(spans):
            if start != ends[-1]:
                raise ValueError("its tensors overlap, or leave a gap")
            ends.append(end)
        if ends[-1] != size:
            raise ValueError(f"its tensors end at byte {ends[-1]:,}, but the file at {size:,}")

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """The rows from `start` to `stop` of a tensor."""
        shape = (stop - start, *self.shapes[name][1:])
        rows = torch.empty(shape, dtype=self.dtypes[name])
        row_bytes = math.prod(shape[1:]) * rows.element_size()
        self.file.seek(self.starts[name] + start * row_bytes)
        # Through uint8, because NumPy has no bfloat16.
        wanted = rows.view(-1).view(torch.uint8).numpy().data
        while len(wanted):  # a single call reads at most 2 GiB
            count = self.file.readinto(wanted)  # type: ignore[attr-defined]
            if not count:
                raise UserError(f"{self.path} was cut off while it was read")
            wanted = wanted[count:]
        return rows
