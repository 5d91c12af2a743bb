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
from hypothesis import given
from hypothesis import strategies as st
from refusals import Attack, refused
from safetensors.torch import load_file, save_file

from headscope import trained
from headscope.nn.held import add_hold
from headscope.trained.checkpoint.file import checksum, read

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


def test_what_is_read_is_what_was_written_and_the_same_content_gives_the_same_bytes(file, whole):
    stored, _ = content(configuration("model.tied_head=true"))
    stored["training"]["callbacks"] = {"a": [None, True, 1.5e-300, -3, "é\ud800\x01"]}
    square = torch.randn(8, 8)  # transposed, it is another tensor
    stored["tensors"] |= {"optimizer.a": square, "optimizer.b": square.T, "optimizer.c": square}
    save(stored, file)
    found = opened(file)
    assert found["tied"] == {HEAD: EMBEDDING, "optimizer.c": "optimizer.a"}
    torch.testing.assert_close(found.pop("tensors"), stored.pop("tensors"), rtol=0, atol=0)
    assert {key: found[key] for key in stored} == stored
    save(opened(whole), file)
    assert file.read_bytes() == whole.read_bytes()


def test_other_tools_read_the_tensors_by_their_names(whole):
    theirs, ours = load_file(whole), opened(whole)["tensors"]
    assert ours.keys() - theirs.keys() == {HEAD}  # tied weights are stored once
    assert all(torch.equal(theirs[name], ours[name]) for name in theirs)
    assert ours[HEAD].data_ptr() == ours[EMBEDDING].data_ptr()
    (beside := whole.with_name("beside")).touch()
    assert whole.stat().st_mode == beside.stat().st_mode  # others may read it


def test_only_the_tensors_that_are_read_are_verified(file, whole):
    data = bytearray(whole.read_bytes())
    data[-1] ^= 1  # the last tensor has the smallest dtype: the bfloat16 state of the optimizer
    file.write_bytes(data)
    assert trained.load(file).step == 7
    assert_refused(file, "exp_avg has a wrong checksum", use=opened)


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


@pytest.mark.parametrize("bad", [torch.nan, -torch.inf, 1e300])
def test_weights_that_are_not_finite_are_refused(file, bad):
    stored, _ = content()
    dtype = torch.float64 if bad == 1e300 else torch.bfloat16  # too large for the model's float32
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
    entry("format", 9),  # in which scaled embeddings had another scale
    *(entry("texts", v) for v in ("a", [1], ["a"] * 4, ["a" * 1001], ["\ud800"])),
    *(entry("step", v) for v in (-1, "7", 7.0, True, 2**60)),
    *(lambda data: "", lambda data: "{", lambda data: [data]),
    *(entry("tied", {"model.head.weight": other}) for other in ("model.x", [1])),
    lambda data: data | {"checksums": data["checksums"] | {"model.x": 1}},
    entry("checksums", {}),
]


OTHER_PARTS = ("position=learned", "attention=grouped_query")


def test_wrong_data_is_refused(file, whole):
    for change in CONTENTS:
        forged(file, load_file(whole), change(read(whole).data))
        assert_refused(file)
        file.unlink()
    save_file({"model.norm.weight": torch.ones(8)}, file)
    assert_refused(file, "not written by headscope")


def test_weights_that_do_not_fit_the_configuration_are_refused(file, whole):
    norm = "model.norm.weight"
    for changed in ({norm: torch.ones(9)}, {norm: torch.ones(8, dtype=torch.int64)}, {}):
        tensors, data = load_file(whole), read(whole).data
        tensors = {name: tensors[name] for name in tensors if name != norm} | changed
        data["checksums"] = {name: checksum(name, tensor) for name, tensor in tensors.items()}
        forged(file, tensors, data)
        assert_refused(file)
        file.unlink()
    widths = ("layers", "embed_dim", "heads", "block_size", "ngrams", "ff_dim", "kv_heads")
    for changed in [
        *({key: 10**9} for key in widths),
        *({"layers": number} for number in ("x", None, -1, 1, 3)),
        {"attention": {"_target_": "headscope.StackedHeads"}},  # its other keys are missing
        *(configuration(f"model/{each}")["model"] for each in OTHER_PARTS),
        {"qkv_bias": True},
    ]:
        stored, _ = content()
        stored["config"]["model"] |= changed
        save(stored, file)
        assert_refused(file)
    for alphabet in ("abc", "aa"):
        save(content()[0] | {"tokenizer": {"kind": "char", "alphabet": alphabet}}, file)
        assert_refused(file)
    stored, _ = content(configuration("model.tied_head=false"))
    stored["config"]["model"]["tied_head"] = True
    save(stored, file)
    assert_refused(file, "tied_head=true")


@pytest.mark.parametrize("part", ["attention.out_proj", "feed_forward"])
def test_held_values_without_a_mask_and_a_mask_without_values_are_refused(file, part):
    stored, model = content()
    add_hold(model, 1, part).mask.fill_(1)
    stored["tensors"] = {f"model.{name}": each for name, each in model.state_dict().items()}
    save(stored, file)
    assert trained.load(file).model.state_dict().keys() == model.state_dict().keys()
    for lacking in ("mask", "values"):
        name = f"model.blocks.1.{part}.held.{lacking}"
        tensors = {each: stored["tensors"][each] for each in stored["tensors"] if each != name}
        save(stored | {"tensors": tensors}, file)
        assert_refused(file, "held")


@pytest.mark.slow
def test_loading_imports_no_compiler(file):
    save(content()[0], file)
    code = "import sys, headscope as h; h.load(sys.argv[1]); print('torch._dynamo' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code, str(file)]) == b"False\n"


def test_what_is_no_regular_file_is_refused_and_not_waited_for(file):
    assert_refused(file, "does not exist", use=opened)
    os.mkfifo(file)
    assert_refused(file, "not a file", use=opened)
