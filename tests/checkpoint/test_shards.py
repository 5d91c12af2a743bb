"""A sharded checkpoint may be damaged or malicious, too. Shards of several processes are tested in
tests/training/test_several_processes.py."""

import shutil
from pathlib import Path

import pytest
import torch
from checkpoint_files import content, opened, save

from headscope.checkpoint.file import read
from headscope.checkpoint.shards import entry_of, write_shards
from headscope.errors import UserError
from headscope.training.sharding import consolidate, remove_unused_shards

HEAD, EMBEDDING = "model.head.weight", "model.embedding.weight"


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """A checkpoint whose tensors are in one shard. The output head is tied to the embedding."""
    stored, shards = content()[0], tmp_path / "shards_7"
    shards.mkdir()
    write_shards(
        {name: stored["tensors"][name] for name in stored["tensors"] if name != HEAD}, shards
    )
    rest = {"tensors": {}, "tied": {HEAD: EMBEDDING}, "shards": entry_of(shards)}
    save(stored | rest, tmp_path / "last.safetensors")
    return tmp_path / "last.safetensors"


def test_a_damaged_checkpoint_does_not_stop_the_others(sharded: Path) -> None:
    """A run that continues although its best checkpoint is damaged saves, and reaches its end."""
    folder = sharded.parent
    best = folder / "best.safetensors"
    best.write_bytes(sharded.read_bytes()[:100])
    shutil.copytree(folder / "shards_7", folder / "shards_3")
    remove_unused_shards(folder)
    assert [each.name for each in folder.glob("shards_*")] == ["shards_7"]
    consolidate(folder)
    assert not list(folder.glob("shards_*"))
    assert read(sharded).weights()
    best.unlink()
    consolidate(folder)


def test_damaged_shards_are_not_consolidated(sharded: Path) -> None:
    shard_of(sharded).write_bytes(b"")
    before = sharded.read_bytes()
    consolidate(sharded.parent)
    assert sharded.read_bytes() == before
    refused(sharded, "is damaged")


def test_unsharded_checkpoints_are_not_read_again(tmp_path: Path) -> None:
    """At the end of a run without shards, a damaged best checkpoint does not matter."""
    (tmp_path / "best.safetensors").write_bytes(b"damaged")
    consolidate(tmp_path)


def shard_of(checkpoint: Path) -> Path:
    (file,) = (checkpoint.parent / "shards_7").iterdir()
    return file


def refused(path: Path, why: str) -> None:
    with pytest.raises(UserError, match=rf"last\.safetensors.*{why}"):
        opened(path)


def test_the_tensors_are_put_together(sharded: Path) -> None:
    expected = content()[0]["tensors"]
    for whole in (False, True):
        assert ("shards" in read(sharded).data) is not whole
        weights = opened(sharded)["tensors"]
        assert weights.keys() == expected.keys()
        assert all(torch.equal(weights[name], expected[name]) for name in weights)
        assert weights[HEAD].data_ptr() == weights[EMBEDDING].data_ptr()
        assert read(sharded).tensors("model.norm.").keys() == {"weight"}
        consolidate(sharded.parent)


def test_damaged_shards_are_refused(sharded: Path) -> None:
    file = shard_of(sharded)
    original = file.read_bytes()
    for position in (len(original) // 2, len(original) - 1):
        damaged = bytearray(original)
        damaged[position] ^= 1
        file.write_bytes(damaged)
        refused(sharded, "damaged")
    moved = file.rename(sharded.parent / "moved")
    file.symlink_to(moved)
    refused(sharded, "not a regular file")
    file.unlink()
    refused(sharded, "not those that were written")
    shutil.rmtree(file.parent)
    refused(sharded, "is missing")


def test_shards_lie_beside_the_checkpoint(sharded: Path, tmp_path: Path) -> None:
    shutil.copytree(tmp_path / "shards_7", tmp_path / "other" / "shards_7")
    data = read(sharded).data | {"tensors": {}}
    for name in ("other/shards_7", "../shards_7", str(tmp_path / "shards_7"), "", 7, None):
        save(data | {"shards": data["shards"] | {"folder": name}}, sharded)
        refused(sharded, "does not name a folder of shards")
    save(data | {"shards": data["shards"] | {"folder": "shards_8"}}, sharded)
    (tmp_path / "shards_8").symlink_to(tmp_path / "other" / "shards_7")
    refused(sharded, "is missing")
