"""Reads checkpoint files, which may be damaged or malicious.

A checkpoint is a zip archive written by `torch.save`: a pickle, and one entry of raw bytes per
tensor. `torch.load(weights_only=True)` runs no code from the file. But `torch.load` verifies no
checksums, and a small file can make it allocate any amount of memory. So this module checks the
archive, its checksums and its pickle before loading, and the loaded content afterwards. This module
uses at most a small multiple of the file size as memory.
"""

import math
import pickletools
import re
import stat
import struct
import zipfile
from pathlib import Path
from typing import Any

import torch

from headscope.checkpoint import shards
from headscope.errors import UserError

FORMAT = 4

CONVERT = "python scripts/convert.py source=... output=outputs/..."
"""For messages: the command that converts a model of another tool."""

DEPTH = 64
"""Maximum nesting depth of the dictionaries and lists in a checkpoint."""

CHUNK = 2**20
"""Number of bytes that are read at a time to verify a checksum."""

GLOBALS = re.compile(
    r"collections OrderedDict|torch\._utils _rebuild_tensor_v2"
    r"|torch (Double|Float|Half|BFloat16|Long|Int|Short|Char|Byte|Bool)Storage"
)
"""The only classes and functions that the pickle may use. Dictionaries and dense tensors need no
others."""


def read(path: Path, *, mmap: bool = True, with_shards: bool = True) -> dict[str, Any]:
    """Read a checkpoint file. Returns nested dictionaries and lists of plain data and tensors.

    All checksums are verified first. If `mmap` is true, the tensors are memory-mapped from the file
    instead of copied. If the checkpoint is sharded, its shards are read as well, and each tensor is
    put together. If `with_shards` is false, empty tensors stand for the sharded ones.

    Raises UserError if the file is missing, damaged or not a headscope checkpoint, or if a weight
    is NaN or infinite.
    """
    content, pickle_bytes = load_plain(path, mmap=mmap)
    try:
        size = path.stat().st_size
        if with_shards and isinstance(content, dict) and "shards" in content:
            collect_tensors(content, limit=pickle_bytes)  # checks the depth
            content, shard_bytes = read_shards(content, path)
            size += shard_bytes
        check_content(content, nodes=pickle_bytes, size=size)
    except Damaged as error:
        raise UserError(f"{path} cannot be used: {error}") from error
    return content


def load_plain(path: Path, *, mmap: bool) -> tuple[Any, int]:
    """The content of a file that `torch.save` wrote, and the size of its pickle in bytes. Verifies
    the archive, its checksums and its pickle, but not the content. Raises UserError if the file is
    missing or damaged."""
    check_regular(path)
    try:
        pickle_bytes = check_archive(path)
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap), pickle_bytes
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from error
    except Damaged as error:
        raise UserError(f"{path} is not a checkpoint, or is damaged: {error}") from error
    except Exception as error:  # a malformed pickle can raise almost any exception
        raise UserError(f"{path} is not a checkpoint, or is damaged") from error


def read_foreign(path: Path) -> dict[Any, Any]:
    """The content of a checkpoint of another tool: nested dictionaries and lists of plain data and
    memory-mapped tensors. Raises UserError if the file is missing, is damaged, or contains anything
    else."""
    content, pickle_bytes = load_plain(path, mmap=True)
    try:
        check_tensors(content, nodes=pickle_bytes, size=path.stat().st_size)
        if not isinstance(content, dict):
            raise Damaged("it is not a dictionary")
    except Damaged as error:
        raise UserError(f"{path} cannot be used: {error}") from error
    return content


def read_shards(content: dict[str, Any], path: Path) -> tuple[dict[str, Any], int]:
    """The content of the sharded checkpoint `path` with whole tensors, and the size of its shards
    in bytes. Raises Damaged if the shards are missing or damaged."""
    folder = shards.folder_of(content, path)
    if folder is None:
        raise Damaged("its entry shards does not name a folder of shards")
    try:
        return shards.with_shards(content, folder)
    except (OSError, shards.DamagedShards) as error:
        raise Damaged(str(error)) from error
    except Exception as error:  # a malformed shard can raise almost any exception
        raise Damaged(f"the shards in {folder} are damaged") from error


class Damaged(Exception):
    """A file is not a valid checkpoint. The message gives the reason, but not the file name."""


def check_regular(path: Path) -> None:
    """Raises UserError if `path` is not a regular file. For example, reading a pipe could wait
    forever."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):  # ValueError: the name contains a NUL character
        raise UserError(f"checkpoint {path} does not exist") from None
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe or a device"
        raise UserError(f"checkpoint {path} is {kind}, not a file")


# --- the archive ---


def check_archive(path: Path) -> int:
    """Verify the structure of the zip archive, all its checksums, and the pickle in it.

    Returns the size of the pickle in bytes. Raises Damaged if the verification fails.
    """
    size = path.stat().st_size
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            names = [entry.filename for entry in entries]
            if len(set(names)) < len(names):
                raise Damaged("its archive has two entries with the same name")
            if any(
                entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size
                for entry in entries
            ):
                raise Damaged("its archive is compressed, but torch.save does not compress")
            if sum(entry.file_size for entry in entries) > size:
                raise Damaged("its archive declares more bytes than the file has")
            for entry in entries:
                with archive.open(entry) as stream:  # the last read verifies the checksum
                    while stream.read(CHUNK):
                        pass
            pickles = [name for name in names if name.rpartition("/")[2] == "data.pkl"]
            if len(pickles) != 1 or any("constants.pkl" in name for name in names):
                raise Damaged("its archive was not written by torch.save")
            check_same_archive(path, entries)
            return check_pickle(archive.read(pickles[0]))
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as error:
        raise Damaged(str(error)) from error


def check_same_archive(path: Path, entries: list[zipfile.ZipInfo]) -> None:
    """Raises Damaged unless torch and `zipfile` find the same entries at the same offsets.

    `zipfile` has verified the checksums, but torch reads the tensors. A malicious file can look
    like one archive to `zipfile` and like another archive to torch.
    """
    reader: Any = torch._C.PyTorchFileReader(str(path))  # Any, as the type stub lacks a method
    folders = {entry.filename.partition("/")[0] for entry in entries}
    found = {entry.filename.partition("/")[2]: entry for entry in entries}
    if len(folders) != 1 or sorted(reader.get_all_records()) != sorted(found):
        raise Damaged("zipfile and torch find different entries in its archive")
    with path.open("rb") as file:
        for name, entry in found.items():
            file.seek(entry.header_offset + 26)
            name_length, extra_length = struct.unpack("<2H", file.read(4))
            start = entry.header_offset + 30 + name_length + extra_length
            if reader.get_record_offset(name) != start:
                raise Damaged("zipfile and torch find different entries in its archive")


def check_pickle(data: bytes) -> int:
    """Raises Damaged if the pickle uses a class or function that is not in GLOBALS. Returns the
    size of the pickle in bytes.

    GLOBALS is stricter than torch's own list: torch also allows `bytearray`, which can allocate any
    amount of memory.
    """
    try:
        for opcode, argument, _ in pickletools.genops(data):
            if "GLOBAL" in opcode.name and not GLOBALS.fullmatch(str(argument)):
                raise Damaged(f"its pickle uses {str(argument)[:80]!r}, which is not allowed")
    except (ValueError, UnicodeDecodeError) as error:
        raise Damaged("its pickle cannot be parsed") from error
    return len(data)


# --- the content ---


def check_content(content: Any, *, nodes: int, size: int) -> None:
    """Raises Damaged unless `content` has all required entries and contains only plain data and
    dense tensors.

    `nodes` is the maximum number of values in `content`. A value that is in two dictionaries counts
    twice. `size` is the file size in bytes.
    """
    check_tensors(content, nodes=nodes, size=size)
    entry = content.get("headscope") if isinstance(content, dict) else None
    if not isinstance(entry, dict):
        raise Damaged(
            "it has no entry headscope, so it is not a checkpoint of headscope; a model of another "
            f"tool must be converted first: {CONVERT}"
        )
    # The type is checked first, because a malicious file may contain a tensor here.
    if type(entry.get("format")) is not int or entry["format"] != FORMAT:
        raise Damaged("it was written by another version of headscope")
    kinds = {"config": dict, "tokenizer": dict, "store": str, "precision": str}
    for key, kind in kinds.items():
        if not isinstance(entry.get(key), kind):
            raise Damaged(f"its headscope.{key} is missing or has the wrong type")
    step = content.get("global_step")
    if type(step) is not int or not 0 <= step < 2**53:
        raise Damaged(f"its global_step is {str(step)[:80]}, not a step number")
    weights = content.get("state_dict")
    if not isinstance(weights, dict) or not weights:
        raise Damaged("it has no weights (state_dict)")
    for name, weight in weights.items():
        if not isinstance(name, str) or not isinstance(weight, torch.Tensor):
            raise Damaged(f"state_dict[{str(name)[:80]!r}] is not a tensor")
        if not weight.is_floating_point():
            raise Damaged(
                f"its weight {name[:80]} has the type {weight.dtype}, which is not floating-point"
            )
        if not is_finite(weight):
            raise Damaged(
                f"its weights are not finite (NaN or infinity in {name[:80]}): training diverged; "
                "choose an earlier checkpoint"
            )


def check_tensors(content: Any, *, nodes: int, size: int) -> None:
    """Raises Damaged unless `content` contains only plain data and dense tensors. For `nodes` and
    `size`, see `check_content`."""
    tensors = collect_tensors(content, limit=nodes)
    # The factor is two because a tied output head is stored once, but is listed twice in the state
    # dict.
    if sum(tensor.numel() * tensor.element_size() for tensor in tensors) > 2 * size:
        raise Damaged("its tensors overlap")


def collect_tensors(content: Any, *, limit: int) -> list[torch.Tensor]:
    """All tensors in nested plain data. A tensor that occurs twice is listed twice. Raises Damaged
    if there are more than `limit` values, or a value that is neither plain data nor a tensor."""
    tensors = []
    stack = [(content, 0)]
    visited = 0
    while stack:
        node, depth = stack.pop()
        visited += 1
        if visited > limit or depth > DEPTH:
            raise Damaged("its dictionaries are nested too deeply or have too many values")
        if isinstance(node, dict):
            for key in node:
                if type(key) not in (str, int):
                    raise Damaged(f"it has a key of type {type(key).__name__}")
            stack += [(value, depth + 1) for value in node.values()]
        elif isinstance(node, list | tuple):
            stack += [(value, depth + 1) for value in node]
        elif isinstance(node, torch.Tensor):
            check_tensor(node)
            tensors.append(node)
        elif type(node) is int:
            if not -(2**63) <= node < 2**63:
                raise Damaged("it has an integer of more than 64 bits")
        elif node is not None and type(node) not in (bool, float, str):
            raise Damaged(f"it has a value of type {type(node).__name__}")
    return tensors


def check_tensor(tensor: torch.Tensor) -> None:
    """Raises Damaged unless the tensor is dense, on the CPU, and all its elements are stored. An
    expanded tensor (with stride 0) stores only some of its elements, and a copy of it could need
    far more memory than the file."""
    if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
        raise Damaged("it has a tensor that is not dense")
    needed = math.prod(tensor.shape) * tensor.element_size()
    expanded = any(
        stride == 0
        for length, stride in zip(tensor.shape, tensor.stride(), strict=True)
        if length > 1
    )
    if expanded or needed > tensor.untyped_storage().nbytes():
        raise Damaged("it has a tensor with more elements than are stored")


def is_finite(tensor: torch.Tensor) -> bool:
    """Whether all elements are finite: neither NaN nor infinite."""
    if not tensor.is_floating_point() or not tensor.numel():
        return True
    # aminmax allocates no large tensor, and returns NaN if any element is NaN.
    lowest, highest = tensor.detach().aminmax()
    return math.isfinite(lowest) and math.isfinite(highest)
