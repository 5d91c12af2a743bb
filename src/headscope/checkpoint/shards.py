"""Reads and writes the shards of a checkpoint: a folder in which each process of a run has written
its parts of the sharded tensors.

The parts are safetensors files, written and read by torch.distributed.checkpoint, which is imported
where it is needed, because the import takes 0.2 s. Its own metadata file would be a pickle.
"""

import hashlib
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

FOLDER = re.compile(r"shards_\d{1,20}(_\d{1,9})?")
FILE_BYTES = 128 * 2**20
"""Size of the tensors after which a new file begins, before they are divided among the
processes."""


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


def entry_of(folder: Path) -> dict[str, Any]:
    """The entry `shards` in the plain data of a checkpoint: the name of the folder, and the sha256
    of each file in it."""
    return {
        "folder": folder.name,
        "files": {file.name: checksum(file) for file in sorted(folder.iterdir())},
    }


def checksum(file: Path) -> str:
    """The sha256 of a file. Raises ValueError if it is not a regular file: reading a pipe could
    wait forever."""
    if file.is_symlink() or not file.is_file():
        raise ValueError(f"{file} is not a regular file")
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def check_shards(shards: Any) -> None:
    """Raises ValueError unless `shards` has the form of `entry_of`. The folder must be next to the
    checkpoint."""
    folder, files = shards["folder"], shards["files"]
    if not isinstance(folder, str) or not FOLDER.fullmatch(folder) or not isinstance(files, dict):
        raise ValueError("its entry shards does not name a folder of shards")


def read_shards(parent: Path, shards: Mapping[str, Any], prefix: str) -> dict[str, Tensor]:
    """The whole sharded tensors whose names begin with `prefix`, from the folder in `parent` that
    the entry `shards` names.

    Raises ValueError if the folder is not the one that was written. Any other exception means that
    a shard is malformed.
    """
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    folder = parent / shards["folder"]
    if folder.is_symlink() or not folder.is_dir():
        raise ValueError(f"the folder {folder} with its shards is missing")
    if entry_of(folder) != shards:
        raise ValueError(f"the files in {folder} are damaged, or are not those that were written")
    reader = dcp.HuggingFaceStorageReader(str(folder))
    tensors: dict[str, Tensor] = {}
    for name, entry in reader.read_metadata().state_dict_metadata.items():
        assert isinstance(entry, TensorStorageMetadata)
        if name.startswith(prefix):
            tensors[name] = torch.zeros(entry.size, dtype=entry.properties.dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that only this process loads
        dcp.load(tensors, storage_reader=reader, no_dist=True)
    return tensors
