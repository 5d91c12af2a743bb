"""A sharded checkpoint may be damaged or malicious, too. Shards of several processes are tested in
tests/training/test_several_processes.py."""

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from checkpoint_files import content

from headscope.checkpoint.file import read
from headscope.checkpoint.shards import checksums, map_tensors, named_tensors, write_shards
from headscope.errors import UserError
from headscope.training.sharding import consolidate, remove_unused_shards


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """A checkpoint whose weights are in one shard. The output head is tied to the embedding."""
    whole, _ = content()
    folder = tmp_path / "shards_7"
    tensors = dict(named_tensors(whole))
    head, embedding = "state_dict/model.head.weight", "state_dict/model.embedding.weight"
    del tensors[head]
    folder.mkdir()
    write_shards(tensors, folder)
    rest = map_tensors(whole, lambda name, tensor: torch.empty(0))
    rest["shards"] = {
        "folder": folder.name,
        "files": checksums(folder),
        "tied": {head: embedding},
    }
    torch.save(rest, tmp_path / "last.ckpt")
    return tmp_path / "last.ckpt"


def test_a_damaged_checkpoint_does_not_stop_the_others(sharded: Path) -> None:
    """A run that continues although best.ckpt is damaged saves, and reaches its end."""
    folder = sharded.parent
    (folder / "best.ckpt").write_bytes(sharded.read_bytes()[:100])
    shutil.copytree(folder / "shards_7", folder / "shards_3")
    remove_unused_shards(folder)
    assert [each.name for each in folder.glob("shards_*")] == ["shards_7"]
    consolidate(folder)
    assert not list(folder.glob("shards_*"))
    assert read(sharded)["state_dict"]
    (folder / "best.ckpt").unlink()
    consolidate(folder)


def test_damaged_shards_are_not_consolidated(sharded: Path) -> None:
    shard_of(sharded).write_bytes(b"")
    before = sharded.read_bytes()
    consolidate(sharded.parent)
    assert sharded.read_bytes() == before
    with pytest.raises(UserError, match="is damaged"):
        read(sharded)


def test_unsharded_checkpoints_are_not_read_again(tmp_path: Path) -> None:
    """At the end of a run without shards, a damaged best.ckpt does not matter."""
    (tmp_path / "best.ckpt").write_bytes(b"damaged")
    consolidate(tmp_path)


def change(checkpoint: Path, function: Callable[[dict], None]) -> None:
    """Changes the entry `shards` of a checkpoint."""
    loaded = torch.load(checkpoint, weights_only=True)
    function(loaded["shards"])
    torch.save(loaded, checkpoint)


def shard_of(checkpoint: Path) -> Path:
    (file,) = (checkpoint.parent / "shards_7").iterdir()
    return file


def test_the_tensors_are_put_together(sharded: Path) -> None:
    whole, _ = content()
    found = read(sharded)
    assert "shards" not in found
    weights = found["state_dict"]
    assert weights.keys() == whole["state_dict"].keys()
    assert all(torch.equal(weights[name], whole["state_dict"][name]) for name in weights)
    head, embedding = weights["model.head.weight"], weights["model.embedding.weight"]
    assert head.data_ptr() == embedding.data_ptr()
    assert not read(sharded, with_shards=False)["state_dict"]["model.head.weight"].numel()


def test_damaged_shards_are_refused(sharded: Path) -> None:
    file = shard_of(sharded)
    original = file.read_bytes()
    for position in (len(original) // 2, len(original) - 1):
        damaged = bytearray(original)
        damaged[position] ^= 1
        file.write_bytes(damaged)
        with pytest.raises(UserError, match=r"the shard .* is damaged"):
            read(sharded)
    file.unlink()
    with pytest.raises(UserError, match="not the shards that were written"):
        read(sharded)
    shutil.rmtree(file.parent)
    with pytest.raises(UserError, match="is missing"):
        read(sharded)


def test_shards_lie_beside_the_checkpoint(sharded: Path, tmp_path: Path) -> None:
    shutil.copytree(tmp_path / "shards_7", tmp_path / "other" / "shards_7")
    for name in ("other/shards_7", "../shards_7", str(tmp_path / "shards_7"), "", 7, None):
        change(sharded, lambda shards, name=name: shards.update(folder=name))
        with pytest.raises(UserError, match="does not name a folder of shards"):
            read(sharded)
    change(sharded, lambda shards: shards.update(folder="shards_8"))
    (tmp_path / "shards_8").symlink_to(tmp_path / "other" / "shards_7")
    with pytest.raises(UserError, match="is missing"):
        read(sharded)


def test_a_shard_that_is_no_regular_file_is_refused(sharded: Path) -> None:
    file = shard_of(sharded)
    moved = file.rename(sharded.parent / "moved")
    file.symlink_to(moved)
    with pytest.raises(UserError, match="is damaged"):
        read(sharded)
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(UserError, match="is damaged"):
        read(sharded)


@pytest.mark.parametrize(
    "entry", [[], "x", {"folder": "shards_7"}, {"folder": "shards_7", "files": 3}]
)
def test_malformed_entries_are_refused(sharded: Path, entry: object) -> None:
    loaded = torch.load(sharded, weights_only=True) | {"shards": entry}
    torch.save(loaded, sharded)
    with pytest.raises(UserError):
        read(sharded)


def test_tensors_larger_than_the_files_are_refused(sharded: Path) -> None:
    """The header of a small file can declare a huge tensor, by its offset in the whole tensor."""
    file = shard_of(sharded)
    data = file.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    places = json.loads(header["__metadata__"]["DCP_SHARDING_INFO"])
    name = next(iter(places))
    places[name]["saved_offsets"] = [2**50] + [0] * (len(places[name]["saved_offsets"]) - 1)
    header["__metadata__"]["DCP_SHARDING_INFO"] = json.dumps(places)
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])
    change(sharded, lambda shards: shards.update(files=checksums(file.parent)))
    with pytest.raises(UserError, match="declare more bytes than the files have"):
        read(sharded)


def test_weights_that_are_not_finite_are_refused(sharded: Path) -> None:
    whole, _ = content()
    tensors = dict(named_tensors(whole))
    tensors["state_dict/model.norm.weight"][0] = float("nan")
    del tensors["state_dict/model.head.weight"]
    folder = sharded.parent / "shards_7"
    shutil.rmtree(folder)
    folder.mkdir()
    write_shards(tensors, folder)
    change(sharded, lambda shards: shards.update(files=checksums(folder)))
    with pytest.raises(UserError, match="not finite"):
        read(sharded)
