"""The laws of a checkpoint file: what is read is what was written, or the file is refused in one
line that names it."""

import json
import os
import pickle
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
import torch
from checkpoint_files import configuration, content, opened, save
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import Attack, refused
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from headscope import trained
from headscope.checkpoint.file import checksum, read

HEAD, EMBEDDING = "model.head.weight", "model.embedding.weight"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A checkpoint with the state of an optimizer. Its output head is tied to the embedding."""
    path = tmp_path_factory.mktemp("run") / "whole.safetensors"
    stored, _ = content(configuration("model.tied_head=true"))
    stored["tensors"]["optimizer.norm.weight.step"] = torch.tensor(3.0)
    stored["tensors"]["optimizer.norm.weight.exp_avg"] = torch.randn(8).to(torch.bfloat16)
    save(stored, path)
    return path


@pytest.fixture
def file(tmp_path):
    """Where a test writes its file."""
    return tmp_path / "a.safetensors"


def assert_refused(path, *words, use=trained.load):
    """Refused in one line that names the file."""
    with refused(path.name, *words):
        use(path)


# --- a whole file ---


def test_what_is_read_is_what_was_written_and_the_same_content_gives_the_same_bytes(file, whole):
    stored, _ = content(configuration("model.tied_head=true"))
    stored["training"]["callbacks"] = {"a": [None, True, 1.5e-300, -3, "é\ud800\x01"]}
    save(stored, file)
    found = opened(file)
    tensors, expected = found.pop("tensors"), stored.pop("tensors")
    assert {key: found[key] for key in stored} == stored
    assert tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(tensors[name], tensor, rtol=0, atol=0)
    save(opened(whole), file)
    assert file.read_bytes() == whole.read_bytes()


def test_other_tools_read_the_tensors_by_their_names(whole):
    theirs, ours = load_file(whole), opened(whole)["tensors"]
    assert ours.keys() - theirs.keys() == {HEAD}  # tied weights are stored once
    assert all(torch.equal(theirs[name], ours[name]) for name in theirs)
    assert ours[HEAD].data_ptr() == ours[EMBEDDING].data_ptr()
    with safe_open(whole, framework="pt") as file:
        assert list(file.metadata()) == ["headscope"]
    (beside := whole.with_name("beside")).touch()
    assert whole.stat().st_mode == beside.stat().st_mode  # others may read it


def test_a_transposed_tensor_is_not_taken_for_a_tied_one(file):
    stored, _ = content()
    square = torch.randn(8, 8)
    stored["tensors"] |= {"optimizer.a": square, "optimizer.b": square.T, "optimizer.c": square}
    save(stored, file)
    found = opened(file)
    assert torch.equal(found["tensors"]["optimizer.b"], square.T)
    assert found["tied"] == {HEAD: EMBEDDING, "optimizer.c": "optimizer.a"}


def test_untied_weights_are_not_loaded_into_a_tied_model(file):
    stored, _ = content(configuration("model.tied_head=false"))
    stored["config"]["model"]["tied_head"] = True
    save(stored, file)
    assert_refused(file, "tied_head=true")


def test_only_the_tensors_that_are_read_are_verified(file, whole):
    data = bytearray(whole.read_bytes())
    data[-1] ^= 1  # the last tensor has the smallest dtype: the bfloat16 state of the optimizer
    file.write_bytes(data)
    assert trained.load(file).step == 7
    assert_refused(file, "exp_avg has a wrong checksum", use=opened)


# --- damage ---


@settings(max_examples=200)
@given(data=st.data())
def test_a_flipped_bit_is_noticed(tmp_path_factory, whole, data):
    path = tmp_path_factory.getbasetemp() / "flipped.safetensors"
    damaged = bytearray(whole.read_bytes())
    place = data.draw(st.integers(0, 8 * len(damaged) - 1))
    damaged[place // 8] ^= 1 << place % 8
    path.write_bytes(damaged)
    assert_refused(path, use=opened)


def test_a_truncated_file_is_refused(file, whole):
    data = whole.read_bytes()
    for changed in (b"", data[:7], data[:100], data[: len(data) // 2], data[:-1], data + b"\0"):
        file.write_bytes(changed)
        assert_refused(file, use=opened)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_weights_that_are_not_finite_are_refused(file, dtype):
    too_large = [1e300] if dtype is torch.float64 else []  # for the model's float32
    for bad in (torch.nan, torch.inf, -torch.inf, *too_large):
        stored, _ = content()
        stored["tensors"]["model.norm.weight"] = torch.tensor([1.0, bad] * 4, dtype=dtype)
        save(stored, file)
        assert_refused(file, "not finite")


# --- files of strangers, whose checksums are right ---


def test_a_pickle_is_refused_and_not_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in (Path("a.safetensors"), Path("a.ckpt")):
        for write in (torch.save, lambda value, path: path.write_bytes(pickle.dumps(value))):
            write({"state_dict": Attack()}, path)
            assert_refused(path, use=opened)
            assert_refused(path)
            assert not Path("attacked").exists()


def forged(path, tensors, data):
    """Writes a file with this plain data, whose checksums are right."""
    text = data if isinstance(data, str) else json.dumps(data)
    metadata = {"headscope": f"{zlib.crc32(text.encode()):08x}{text}"}
    save_file(tensors, path, metadata=metadata)


def entry(key, value):
    return lambda data: data | {key: value}


KEYS = ("format", "config", "tokenizer", "store", "precision", "step", "checksums", "tied")
CONTENTS = [
    *(lambda data, key=key: {k: v for k, v in data.items() if k != key} for key in KEYS),
    *(entry(key, v) for key in KEYS for v in (None, 3.5, [], [["a", 1]])),
    *(entry("step", v) for v in (-1, "7", 7.0, True, 2**60)),
    *(lambda data: "", lambda data: "{", lambda data: [data]),
    *(entry("tied", {"model.head.weight": other}) for other in ("model.x", [1])),
    lambda data: data | {"checksums": data["checksums"] | {"model.x": 1}},
    entry("checksums", {}),
]


def test_wrong_data_is_refused(file, whole):
    for change in CONTENTS:
        forged(file, load_file(whole), change(read(whole).data))
        assert_refused(file)
        file.unlink()
    save_file({"model.norm.weight": torch.ones(8)}, file)
    assert_refused(file, "not written by headscope")


def test_weights_that_do_not_fit_the_configuration_are_refused(file, whole):
    norm = "model.norm.weight"
    for weight in (torch.ones(9), torch.tensor(1.0), torch.ones(8, dtype=torch.int64), None):
        tensors, data = load_file(whole) | {norm: weight}, read(whole).data
        if weight is None:
            del tensors[norm]
        data["checksums"] = {name: checksum(name, tensor) for name, tensor in tensors.items()}
        forged(file, tensors, data)
        assert_refused(file)
        file.unlink()
    stored, _ = content(configuration("model/position=learned"))
    for word in ("model/position=rotary", "model/attention=grouped_query", "model.qkv_bias=true"):
        save(stored | {"config": configuration(word)}, file)
        assert_refused(file)


WIDTHS = ("ff_dim", "head_dim", "kv_heads")
SIZES = [
    *({key: 10**9} for key in ("layers", "embed_dim", "heads", "block_size", "ngrams", *WIDTHS)),
    *({"layers": layers} for layers in ("x", None, -1, 1, 3)),
    {"attention": {"_target_": "headscope.StackedHeads"}},  # its other keys are missing
]


def test_sizes_and_tokenizers_that_are_not_those_of_the_weights_are_refused(file):
    for sizes in SIZES:
        stored, _ = content()
        stored["config"]["model"].update(sizes)
        save(stored, file)
        assert_refused(file)
    for alphabet in ("abc", "aa"):
        save(content()[0] | {"tokenizer": {"kind": "char", "alphabet": alphabet}}, file)
        assert_refused(file)


def test_loading_imports_no_compiler(file):
    save(content()[0], file)
    code = (
        "import sys, headscope; headscope.load(sys.argv[1]); print('torch._dynamo' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(file)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said == "False\n"


def test_what_is_no_regular_file_is_refused_and_not_waited_for(file):
    assert_refused(file, "does not exist", use=opened)
    os.mkfifo(file)
    assert_refused(file, "not a file", use=opened)
