"""The laws of a checkpoint file: what is read is what was written, or the file is refused in one
line that names it."""

import json
import os
import pickle
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_files import configuration, content, opened, save
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from headscope import checkpoint
from headscope.checkpoint.file import checksum, read
from headscope.errors import UserError

HEAD, EMBEDDING = "model.head.weight", "model.embedding.weight"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with the state of an optimizer. Its output head is tied to the embedding."""
    path = tmp_path_factory.mktemp("run") / "whole.safetensors"
    stored, _ = content(configuration("model.tied_head=true"))
    stored["tensors"]["optimizer.norm.weight.step"] = torch.tensor(3.0)
    stored["tensors"]["optimizer.norm.weight.exp_avg"] = torch.randn(8).to(torch.bfloat16)
    save(stored, path)
    return path


def refused(path: Path, *words: str, use: Callable = opened) -> None:
    """Refused in one line that names the file."""
    with pytest.raises(UserError) as error:
        use(path)
    said = str(error.value)
    assert all(word in said for word in (path.name, *words)), said
    assert "\n" not in said
    assert len(said) < 1000


# --- a whole file ---


def test_what_is_read_is_what_was_written(tmp_path, whole):
    stored, _ = content(configuration("model.tied_head=true"))
    stored["training"]["callbacks"] = {"a": [None, True, 1.5e-300, -3, "é\ud800\x01"]}
    save(stored, tmp_path / "a.safetensors")
    found = opened(tmp_path / "a.safetensors")
    assert {key: found[key] for key in stored if key != "tensors"} == {
        key: value for key, value in stored.items() if key != "tensors"
    }
    assert found["tensors"].keys() == stored["tensors"].keys()
    for name, tensor in stored["tensors"].items():
        assert torch.equal(found["tensors"][name], tensor)
        assert found["tensors"][name].dtype == tensor.dtype


def test_the_same_content_gives_the_same_bytes(tmp_path, whole):
    save(opened(whole), tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == whole.read_bytes()


def test_other_tools_read_the_tensors_by_their_names(whole):
    theirs, ours = load_file(whole), opened(whole)["tensors"]
    assert ours.keys() - theirs.keys() == {HEAD}  # tied weights are stored once
    assert all(torch.equal(theirs[name], ours[name]) for name in theirs)
    assert ours[HEAD].data_ptr() == ours[EMBEDDING].data_ptr()
    with safe_open(whole, framework="pt") as file:
        assert list(file.metadata()) == ["headscope"]


def test_a_transposed_tensor_is_not_taken_for_a_tied_one(tmp_path):
    stored, _ = content()
    square = torch.randn(8, 8)
    stored["tensors"] |= {"optimizer.a": square, "optimizer.b": square.T, "optimizer.c": square}
    save(stored, tmp_path / "a.safetensors")
    found = opened(tmp_path / "a.safetensors")
    assert torch.equal(found["tensors"]["optimizer.b"], square.T)
    assert found["tied"] == {
        "model.head.weight": "model.embedding.weight",
        "optimizer.c": "optimizer.a",
    }


def test_untied_weights_are_not_loaded_into_a_tied_model(tmp_path):
    stored, _ = content(configuration("model.tied_head=false"))
    stored["config"]["model"]["tied_head"] = True
    save(stored, tmp_path / "a.safetensors")
    refused(tmp_path / "a.safetensors", "tied_head=true", use=checkpoint.load)


def test_only_the_tensors_that_are_read_are_verified(tmp_path, whole):
    data = bytearray(whole.read_bytes())
    data[-1] ^= 1  # the last tensor has the smallest dtype: the bfloat16 state of the optimizer
    (tmp_path / "half.safetensors").write_bytes(data)
    assert checkpoint.load(tmp_path / "half.safetensors").step == 7
    refused(tmp_path / "half.safetensors", "exp_avg has a wrong checksum")


# --- damage ---


@settings(max_examples=200)
@given(data=st.data())
def test_a_flipped_bit_is_noticed(tmp_path_factory, whole, data):
    path = tmp_path_factory.getbasetemp() / "flipped.safetensors"
    original = whole.read_bytes()
    place = data.draw(st.integers(0, 8 * len(original) - 1))
    damaged = bytearray(original)
    damaged[place // 8] ^= 1 << place % 8
    path.write_bytes(damaged)
    refused(path)


def test_a_truncated_file_is_refused(tmp_path, whole):
    data = whole.read_bytes()
    for changed in (b"", data[:7], data[:100], data[: len(data) // 2], data[:-1], data + b"\0"):
        (tmp_path / "part.safetensors").write_bytes(changed)
        refused(tmp_path / "part.safetensors")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_weights_that_are_not_finite_are_refused(tmp_path, dtype):
    for bad in (torch.nan, torch.inf, -torch.inf):
        stored, _ = content()
        stored["tensors"]["model.norm.weight"] = torch.tensor([1.0, bad] * 4, dtype=dtype)
        save(stored, tmp_path / "diverged.safetensors")
        refused(tmp_path / "diverged.safetensors", "not finite", use=checkpoint.load)


# --- files of strangers, whose checksums are right ---


class Call:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


def test_a_pickle_is_refused_and_not_run(tmp_path):
    for file in (tmp_path / "a.safetensors", tmp_path / "a.ckpt"):
        for write in (torch.save, lambda value, path: path.write_bytes(pickle.dumps(value))):
            write({"state_dict": Call(tmp_path / "ran")}, file)
            refused(file)
            refused(file, use=checkpoint.load)
            assert not (tmp_path / "ran").exists()


def forged(path: Path, tensors: dict[str, torch.Tensor], data: Any) -> Path:
    """A file with this plain data, whose checksums are right."""
    text = data if isinstance(data, str) else json.dumps(data)
    metadata = {"headscope": f"{zlib.crc32(text.encode()):08x}{text}"}
    save_file(tensors, path, metadata=metadata)
    return path


def entry(key: str, value: Any) -> Callable[[dict], Any]:
    return lambda data: data | {key: value}


KEYS = ("format", "config", "tokenizer", "store", "precision", "step", "checksums", "tied")
CONTENTS: list[Callable[[dict], Any]] = [
    *(lambda data, key=key: {k: v for k, v in data.items() if k != key} for key in KEYS),
    *(entry(key, v) for key in KEYS for v in (None, 3.5, [], [["a", 1]])),
    *(entry("step", v) for v in (-1, "7", 7.0, True, 2**60)),
    *(lambda data: "", lambda data: "{", lambda data: [data]),
    *(entry("tied", {"model.head.weight": other}) for other in ("model.x", [1])),
    lambda data: data | {"checksums": data["checksums"] | {"model.x": 1}},
    entry("checksums", {}),
]


def test_wrong_data_is_refused(tmp_path, whole):
    for change in CONTENTS:
        path = forged(tmp_path / "wrong.safetensors", load_file(whole), change(read(whole).data))
        refused(path, use=checkpoint.load)
        path.unlink()


def test_a_file_without_our_metadata_is_refused(tmp_path):
    save_file({"model.norm.weight": torch.ones(8)}, tmp_path / "other.safetensors")
    refused(tmp_path / "other.safetensors", "not written by headscope")


def test_weights_that_do_not_fit_the_configuration_are_refused(tmp_path, whole):
    for weight in (torch.ones(9), torch.tensor(1.0), torch.ones(8, dtype=torch.int64), None):
        tensors, data = load_file(whole), read(whole).data
        del tensors["model.norm.weight"]
        if weight is not None:
            tensors["model.norm.weight"] = weight
        data["checksums"] = {name: checksum(name, tensor) for name, tensor in tensors.items()}
        path = forged(tmp_path / f"weights_{len(tensors)}.safetensors", tensors, data)
        refused(path, use=checkpoint.load)
    stored, _ = content(configuration("model/position=learned"))
    for word in ("model/position=rotary", "model/attention=grouped_query", "model.qkv_bias=true"):
        save(stored | {"config": configuration(word)}, tmp_path / "other.safetensors")
        refused(tmp_path / "other.safetensors", use=checkpoint.load)


SIZES = [
    *({key: 10**9} for key in ("layers", "embed_dim", "heads", "block_size", "ngrams")),
    *({"layers": layers} for layers in ("x", None, -1, 1, 3)),
    {"attention": {"_target_": "headscope.nn.StackedHeads"}},  # its other keys are missing
]


def test_sizes_and_tokenizers_that_are_not_those_of_the_weights_are_refused(tmp_path):
    for sizes in SIZES:
        stored, _ = content()
        stored["config"]["model"].update(sizes)
        save(stored, tmp_path / "sizes.safetensors")
        refused(tmp_path / "sizes.safetensors", use=checkpoint.load)
    for alphabet in ("abc", "aa"):
        stored, _ = content()
        save(
            stored | {"tokenizer": {"kind": "char", "alphabet": alphabet}},
            tmp_path / "other.safetensors",
        )
        refused(tmp_path / "other.safetensors", use=checkpoint.load)


def test_what_is_no_regular_file_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.safetensors")
    refused(tmp_path / "pipe.safetensors", "not a file")
    refused(tmp_path / "missing.safetensors", "does not exist")
