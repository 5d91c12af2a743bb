"""Reading a checkpoint file that may be damaged or hostile.

A checkpoint is a zip archive as `torch.save` writes it: a pickle, and one entry of raw bytes for
each tensor. `torch.load(weights_only=True)` runs no code of the file, but it verifies no checksum,
and a small file can make it allocate any amount of memory. So the archive, its checksums and its
pickle are checked first, and the result afterwards. Nothing here uses more memory than a small
multiple of the file's size.
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

from headscope.errors import UserError

FORMAT = 3

DEPTH = 64
"""The deepest nesting of dictionaries and lists that is read."""

CHUNK = 2**20

GLOBALS = re.compile(
    r"collections OrderedDict|torch\._utils _rebuild_tensor_v2"
    r"|torch (Double|Float|Half|BFloat16|Long|Int|Short|Char|Byte|Bool)Storage"
)
"""The classes and functions that the pickle may name: dictionaries and plain tensors."""


def read(path: Path, *, mmap: bool = True) -> dict[str, Any]:
    """The raw content of a checkpoint file: nested dictionaries and lists of data and tensors.

    With `mmap`, the tensors stay on disk until they are used. All checksums are verified first.

    Raises UserError when the file is missing, damaged, or no checkpoint of headscope, or when its
    weights are not finite.
    """
    check_regular(path)
    try:
        pickle_bytes = check_archive(path)
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from error
    except Damaged as error:
        raise UserError(f"{path} is not a checkpoint, or is damaged: {error}") from error
    except Exception as error:  # a malformed pickle raises nearly anything
        raise UserError(f"{path} is not a checkpoint, or is damaged") from error
    try:
        check_content(content, nodes=pickle_bytes, size=path.stat().st_size)
    except Damaged as error:
        raise UserError(f"{path} cannot be used: {error}") from error
    return content


class Damaged(Exception):
    """A file that is not what it should be. The message is a reason, without the file's name."""


def check_regular(path: Path) -> None:
    """Raises UserError when `path` is not a regular file: reading a pipe may never end."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):  # ValueError: a NUL character in the name
        raise UserError(f"checkpoint {path} does not exist") from None
    if not stat.S_ISREG(mode):
        what = "a folder" if stat.S_ISDIR(mode) else "a pipe or a device"
        raise UserError(f"checkpoint {path} is {what}, not a file")


# --- the archive ---


def check_archive(path: Path) -> int:
    """Verify the structure and every checksum of the zip archive; returns the pickle's bytes.

    Raises Damaged.
    """
    size = path.stat().st_size
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            names = [entry.filename for entry in entries]
            if len(set(names)) < len(names):
                raise Damaged("its archive has two entries of one name")
            if any(
                entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size
                for entry in entries
            ):
                raise Damaged("its archive is compressed, which torch.save never does")
            if sum(entry.file_size for entry in entries) > size:
                raise Damaged("its archive claims more bytes than the file has")
            for entry in entries:
                with archive.open(entry) as stream:  # verifies the checksum at the end
                    while stream.read(CHUNK):
                        pass
            pickles = [name for name in names if name.rpartition("/")[2] == "data.pkl"]
            if len(pickles) != 1 or any("constants.pkl" in name for name in names):
                raise Damaged("its archive is not one that torch.save has written")
            check_same_archive(path, entries)
            return check_pickle(archive.read(pickles[0]))
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as error:
        raise Damaged(str(error)) from error


def check_same_archive(path: Path, entries: list[zipfile.ZipInfo]) -> None:
    """Raises Damaged unless torch finds the same entries at the same places as `zipfile`, which has
    verified them: a file can be two archives, one for each reader."""
    reader: Any = torch._C.PyTorchFileReader(str(path))  # its stub lacks a method
    folders = {entry.filename.partition("/")[0] for entry in entries}
    found = {entry.filename.partition("/")[2]: entry for entry in entries}
    if len(folders) != 1 or sorted(reader.get_all_records()) != sorted(found):
        raise Damaged("its archive is read in two ways")
    with path.open("rb") as file:
        for name, entry in found.items():
            file.seek(entry.header_offset + 26)
            name_length, extra_length = struct.unpack("<2H", file.read(4))
            start = entry.header_offset + 30 + name_length + extra_length
            if reader.get_record_offset(name) != start:
                raise Damaged("its archive is read in two ways")


def check_pickle(data: bytes) -> int:
    """Raises Damaged when the pickle names a class or function other than those of `GLOBALS`:
    some that torch allows, such as `bytearray`, allocate as much memory as the file says."""
    try:
        for opcode, argument, _ in pickletools.genops(data):
            if "GLOBAL" in opcode.name and not GLOBALS.fullmatch(str(argument)):
                raise Damaged(f"it names {str(argument)[:80]!r}, which no checkpoint needs")
    except (ValueError, UnicodeDecodeError) as error:
        raise Damaged("its pickle cannot be parsed") from error
    return len(data)


# --- the content ---


def check_content(content: Any, *, nodes: int, size: int) -> None:
    """Raises Damaged when `content` is not plain data with whole tensors, of the fields that every
    checkpoint has.

    `nodes` bounds the number of values: one that is walked twice, because two dictionaries share
    it, counts twice. `size` is that of the file.
    """
    tensors = walk(content, limit=nodes)
    # A tied output head is stored once and named twice.
    if sum(tensor.numel() * tensor.element_size() for tensor in tensors) > 2 * size:
        raise Damaged("its tensors overlap")
    own = content.get("headscope") if isinstance(content, dict) else None
    if not isinstance(own, dict):
        raise Damaged("it has no entry headscope")
    if type(own.get("format")) is not int or own["format"] != FORMAT:  # it may be a tensor
        raise Damaged("it was written by another version of headscope")
    for key, kind in {"config": dict, "tokenizer": dict, "store": str, "precision": str}.items():
        if not isinstance(own.get(key), kind):
            raise Damaged(f"its headscope.{key} is missing, or of another type")
    step = content.get("global_step")
    if type(step) is not int or not 0 <= step < 2**53:
        raise Damaged(f"its global_step is {str(step)[:80]}, not a number of steps")
    weights = content.get("state_dict")
    if not isinstance(weights, dict) or not weights:
        raise Damaged("it has no weights (state_dict)")
    for name, weight in weights.items():
        if not isinstance(name, str) or not isinstance(weight, torch.Tensor):
            raise Damaged(f"state_dict[{str(name)[:80]!r}] is not a tensor")
        if not weight.is_floating_point():
            raise Damaged(
                f"its weight {name[:80]} holds {weight.dtype}, not floating-point numbers"
            )
        if not is_finite(weight):
            raise Damaged(
                f"its weights are not finite (NaN or infinity in {name[:80]}): training diverged; "
                "choose an earlier checkpoint"
            )


def walk(content: Any, *, limit: int) -> list[torch.Tensor]:
    """All tensors in nested plain data, each as often as it is named. Raises Damaged."""
    tensors = []
    waiting = [(content, 0)]
    visited = 0
    while waiting:
        node, depth = waiting.pop()
        visited += 1
        if visited > limit or depth > DEPTH:
            raise Damaged("its dictionaries are nested without end")
        if isinstance(node, dict):
            for key in node:
                if type(key) not in (str, int):
                    raise Damaged(f"it has a key of type {type(key).__name__}")
            waiting += [(value, depth + 1) for value in node.values()]
        elif isinstance(node, list | tuple):
            waiting += [(value, depth + 1) for value in node]
        elif isinstance(node, torch.Tensor):
            check_tensor(node)
            tensors.append(node)
        elif type(node) is int:
            if not -(2**63) <= node < 2**63:
                raise Damaged("it has a number beyond 64 bits")
        elif node is not None and type(node) not in (bool, float, str):
            raise Damaged(f"it has a value of type {type(node).__name__}")
    return tensors


def check_tensor(tensor: torch.Tensor) -> None:
    """Raises Damaged unless the tensor is dense, on the CPU, and has a byte of its own in the file
    for each of its bytes."""
    if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
        raise Damaged("it has a tensor that is not dense")
    own = math.prod(tensor.shape) * tensor.element_size()
    overlapping = any(
        stride == 0
        for length, stride in zip(tensor.shape, tensor.stride(), strict=True)
        if length > 1
    )
    if overlapping or own > tensor.untyped_storage().nbytes():
        raise Damaged("it has a tensor with more numbers than the file")


def is_finite(tensor: torch.Tensor) -> bool:
    """Whether no number is NaN or infinite."""
    if not tensor.is_floating_point() or not tensor.numel():
        return True
    lowest, highest = tensor.detach().aminmax()  # NaN if there is one; needs no second tensor
    return math.isfinite(lowest) and math.isfinite(highest)
