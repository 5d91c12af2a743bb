"""Sharded checkpoints: a checkpoint file without its large tensors, and next to it a folder in
which each process has written its parts of these tensors.

The parts are safetensors files, written and read by torch.distributed.checkpoint. Such a file has
no code: only raw numbers, and a JSON header with names, types and sizes. In the checkpoint file, an
empty tensor stands for each sharded tensor.

torch.distributed.checkpoint is imported where it is needed, because the import takes 0.2 s.
"""

import re
import stat
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

FOLDER = re.compile(r"shards_\d{1,20}(_\d{1,9})?")
FILE_BYTES = 128 * 2**20
"""Size of the tensors after which a new file begins, before they are divided among the
processes."""

CHUNK = 2**20
"""Number of bytes that are read at a time to compute a checksum."""


class DamagedShards(Exception):
    """The shards of a checkpoint are missing or damaged. The message gives the reason."""


def write_shards(tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Writes the parts of `tensors` that this process keeps to `folder`. Every process of the run
    must call this with the same names."""
    import torch.distributed.checkpoint as dcp

    # torch copies a whole file in memory before it writes the file.
    files, size = {}, 0
    for name, tensor in tensors.items():
        files[name] = 1 + size // FILE_BYTES
        size += tensor.nbytes
    writer = dcp.HuggingFaceStorageWriter(
        path=str(folder), fqn_to_index_mapping=files, save_distributed=True
    )
    try:
        dcp.save(dict(tensors), storage_writer=writer)
    except dcp.CheckpointException as error:  # the errors of all processes, by rank
        failure, _ = next(iter(error.failures.values()))
        raise failure from error


def checksums(folder: Path) -> dict[str, int]:
    """The CRC-32 of each file in `folder`."""
    return {file.name: checksum(file) for file in sorted(folder.iterdir())}


def checksum(file: Path) -> int:
    value = 0
    with file.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            value = zlib.crc32(chunk, value)
    return value


def folder_of(content: Mapping[str, Any], checkpoint: Path) -> Path | None:
    """The folder with the shards of the file `checkpoint` with this content. None if its entry
    `shards` is missing or does not have the form that headscope writes."""
    shards = content.get("shards")
    name = shards.get("folder") if isinstance(shards, dict) else None
    valid = isinstance(name, str) and FOLDER.fullmatch(name)
    return checkpoint.parent / str(name) if valid else None


def with_shards(content: dict[str, Any], folder: Path) -> tuple[dict[str, Any], int]:
    """The content of a checkpoint with the whole tensors from `folder` in the place of the empty
    ones, and the size of the shards in bytes. Needs as much memory as the shards.

    Raises DamagedShards if the shards do not fit the checkpoint or are damaged.
    """
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    size = checked_size(folder, content["shards"].get("files"))
    reader = dcp.HuggingFaceStorageReader(str(folder))
    stored = reader.read_metadata().state_dict_metadata
    tied = content["shards"].get("tied")
    if not isinstance(tied, dict) or not all(isinstance(each, str) for each in tied.values()):
        raise DamagedShards("its entry shards has no names of tied tensors")
    empty = {name for name, tensor in named_tensors(content) if not tensor.numel()}
    if {tied.get(name, name) for name in empty} != stored.keys():
        raise DamagedShards(f"the tensors in {folder} are not those that it lacks")
    tensors: dict[str, Tensor] = {}
    for name, entry in stored.items():
        assert isinstance(entry, TensorStorageMetadata)
        size_left = size - sum(tensor.nbytes for tensor in tensors.values())
        if entry.size.numel() * entry.properties.dtype.itemsize > size_left:
            raise DamagedShards(f"the shards in {folder} declare more bytes than the files have")
        tensors[name] = torch.zeros(entry.size, dtype=entry.properties.dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that only this process loads
        dcp.load(tensors, storage_reader=reader, no_dist=True)
    whole = map_tensors(
        content, lambda name, tensor: tensors[tied.get(name, name)] if name in empty else tensor
    )
    del whole["shards"]
    return whole, size


def checked_size(folder: Path, files: Any) -> int:
    """The size of all files in `folder`, in bytes. Raises DamagedShards unless these are regular
    files with the names and checksums in `files`."""
    if folder.is_symlink() or not folder.is_dir():
        raise DamagedShards(f"the folder {folder} with its shards is missing")
    found = sorted(folder.iterdir())
    if not isinstance(files, dict) or {file.name for file in found} != files.keys():
        raise DamagedShards(f"the files in {folder} are not the shards that were written")
    size = 0
    for file in found:
        status = file.lstat()
        if not stat.S_ISREG(status.st_mode) or checksum(file) != files[file.name]:
            raise DamagedShards(f"the shard {file} is damaged")
        size += status.st_size
    return size


def named_tensors(node: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """All tensors in nested dictionaries and lists. The name of a tensor is its path, such as
    `optimizer_states/0/state/3/exp_avg`."""
    if isinstance(node, Tensor):
        yield name, node
    elif isinstance(node, Mapping):
        for key, value in node.items():
            yield from named_tensors(value, f"{name}/{key}" if name else str(key))
    elif isinstance(node, list | tuple):
        for number, value in enumerate(node):
            yield from named_tensors(value, f"{name}/{number}" if name else str(number))


def map_tensors(node: Any, function: Callable[[str, Tensor], Any], name: str = "") -> Any:
    """`node` with `function(name, tensor)` in the place of each tensor of `named_tensors`."""
    if isinstance(node, Tensor):
        return function(name, node)
    if isinstance(node, Mapping):
        return {
            key: map_tensors(value, function, f"{name}/{key}" if name else str(key))
            for key, value in node.items()
        }
    if isinstance(node, list | tuple):
        return [
            map_tensors(value, function, f"{name}/{number}" if name else str(number))
            for number, value in enumerate(node)
        ]
    return node
