"""The laws of a checkpoint file: what is read is what was written, or the file is refused in one
line, in time and memory of the order of its size."""

import os
import struct
import tracemalloc
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_files import configuration, content
from hypothesis import given, settings
from hypothesis import strategies as st

from headscope import checkpoint
from headscope.checkpoint.file import is_finite, read
from headscope.errors import UserError


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run") / "whole.ckpt"
    torch.save(content()[0], path)
    return path


def refused(path: Path, why: str = "") -> None:
    """Refused in one line that names the file, whoever reads it."""
    for open_file in (read, checkpoint.load):
        with pytest.raises(UserError) as error:
            open_file(path)
        assert path.name in str(error.value)
        assert why in str(error.value)
        assert "\n" not in str(error.value)


def saved(path: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """A file whose content was changed before it was saved; `change` may return another."""
    stored, _ = content()
    torch.save(change(stored) or stored, path)
    return path


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


# --- damage ---


@settings(max_examples=60)
@given(data=st.data())
def test_a_flipped_bit_is_noticed_or_changes_nothing(tmp_path_factory, whole, data):
    path = tmp_path_factory.mktemp("flipped") / "flipped.ckpt"
    original = whole.read_bytes()
    place = data.draw(st.integers(0, 8 * len(original) - 1))
    damaged = bytearray(original)
    damaged[place // 8] ^= 1 << place % 8
    path.write_bytes(damaged)
    try:
        found = read(path)
    except UserError:
        return
    assert same(found, read(whole))


def test_a_flipped_bit_in_any_tensor_is_refused(tmp_path, whole):
    original = whole.read_bytes()
    with zipfile.ZipFile(whole) as archive:
        entries = [entry for entry in archive.infolist() if "/data/" in entry.filename]
        assert len(entries) > 10
        for entry in entries:
            name_length, extra = struct.unpack_from("<HH", original, entry.header_offset + 26)
            start = entry.header_offset + 30 + name_length + extra
            assert archive.read(entry) == original[start : start + entry.file_size]
            damaged = bytearray(original)
            damaged[start + entry.file_size // 2] ^= 1
            (tmp_path / "flipped.ckpt").write_bytes(damaged)
            refused(tmp_path / "flipped.ckpt", "damaged")


def test_a_block_of_zeros_is_refused(tmp_path, whole):
    data = bytearray(whole.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 512] = bytes(512)
    (tmp_path / "zeroed.ckpt").write_bytes(data)
    refused(tmp_path / "zeroed.ckpt", "damaged")


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(tmp_path, bad):
    def spoil(stored):
        stored["state_dict"]["model.norm.weight"][3] = bad

    refused(saved(tmp_path / "diverged.ckpt", spoil), "not finite")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_finite_is_what_torch_says(dtype):
    for size in (1, 7, 1000):
        numbers = torch.randn(size).to(dtype)
        assert is_finite(numbers)
        for bad in (torch.nan, torch.inf, -torch.inf):
            numbers[size // 2] = bad
            assert not is_finite(numbers)
    assert is_finite(torch.empty(0))


# --- hostile archives ---


def rewritten(path: Path, whole: Path, change: Callable[[zipfile.ZipFile, dict], None]) -> Path:
    """The archive of `whole` written again; `change` adds to it, or changes its entries first."""
    with zipfile.ZipFile(whole) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        change(archive, entries)
        for name, data in entries.items():
            archive.writestr(name, data)
    return path


def test_an_archive_that_was_only_written_again_is_read(tmp_path, whole):
    again = rewritten(tmp_path / "again.ckpt", whole, lambda archive, entries: None)
    assert same(read(again), read(whole))


def test_a_compressed_archive_is_refused(tmp_path, whole):
    def compress(archive: zipfile.ZipFile, entries: dict) -> None:
        archive.writestr("whole/data/99", bytes(10**7), compress_type=zipfile.ZIP_DEFLATED)

    refused(rewritten(tmp_path / "bomb.ckpt", whole, compress), "compressed")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_entries_of_one_name_are_refused(tmp_path, whole):
    def twice(archive: zipfile.ZipFile, entries: dict) -> None:
        archive.writestr("whole/data/0", bytes(4))

    refused(rewritten(tmp_path / "twice.ckpt", whole, twice), "two entries")


def test_the_format_of_before_the_archive_is_refused(tmp_path):
    torch.save(content()[0], tmp_path / "legacy.ckpt", _use_new_zipfile_serialization=False)
    refused(tmp_path / "legacy.ckpt", "damaged")


class Call:
    """Pickled as a call of `function`."""

    def __init__(self, function: Callable, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(
    "allocates", [Call(bytearray, 10**10), Call(torch.Tensor, 10**5, 10**5), Call(set, "abc")]
)
def test_a_pickle_that_names_more_than_dictionaries_and_tensors_is_refused(tmp_path, allocates):
    def add(stored):
        stored["more"] = allocates

    refused(saved(tmp_path / "calls.ckpt", add), "which is not allowed")


# --- hostile content ---


def nested(depth: int) -> dict:
    node: dict = {}
    for _ in range(depth):
        node = {"x": node}
    return node


def laughs(levels: int) -> list:
    """Few objects, 2^levels when they are walked."""
    node: list = []
    for _ in range(levels):
        node = [node, node]
    return node


def cycle() -> dict:
    node: dict = {}
    node["x"] = node
    return node


def own(key: str, value: Any) -> Callable:
    return lambda stored: stored["headscope"].update({key: value})


def weight(value: Any) -> Callable:
    return lambda stored: stored["state_dict"].update({"model.norm.weight": value})


def top(key: str, value: Any) -> Callable:
    return lambda stored: stored.update({key: value})


def without(key: str) -> Callable:
    return lambda stored: {name: part for name, part in stored.items() if name != key}


CONTENTS = {
    **{f"no {key}": without(key) for key in ("headscope", "state_dict", "global_step")},
    **{
        f"{key} is {value!r}": own(key, value)
        for key in ("format", "config", "tokenizer", "store")
        for value in (None, 3.5, [])
    },
    **{
        f"step {value!r}": top("global_step", value)
        for value in (-1, "7", 7.0, True, None, 2**60, torch.tensor(7))
    },
    **{f"state_dict {value!r}": top("state_dict", value) for value in (None, [], {}, 3)},
    "a number for a weight": weight(3),
    "a list for a weight": weight([1.0] * 8),
    "whole numbers for a weight": weight(torch.ones(8, dtype=torch.int64)),
    "a weight of another shape": weight(torch.ones(9)),
    "a weight of no axes": weight(torch.tensor(1.0)),
    "an expanded weight": weight(torch.ones(1).expand(10**12)),
    "an expanded weight of the right shape": weight(torch.ones(1).expand(8)),
    "a sparse weight": weight(torch.ones(8).to_sparse()),
    "a meta weight": weight(torch.ones(8, device="meta")),
    "a parameter": weight(torch.nn.Parameter(torch.ones(8))),
    "a format that is a tensor": lambda stored: stored["headscope"].update(
        {"format": torch.zeros(0)}
    ),
    "a weight too many": lambda stored: stored["state_dict"].update({"model.x": torch.ones(1)}),
    "a name that is no text": lambda stored: stored["state_dict"].update({3: torch.ones(1)}),
    "one tensor a hundred times": top(
        "more", (lambda big: [big.view(-1) for _ in range(100)])(torch.ones(10**5))
    ),
    "deep": own("config", nested(300)),
    "deep as a list": top("more", [nested(200)]),
    "cyclic": own("config", cycle()),
    "many when walked": top("more", laughs(60)),
    "a huge number": own("more", 10**100),
    "bytes": own("more", b"abc"),
    "a tuple as a key": own("more", {(1, 2): 3}),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_wrong_content_is_refused(tmp_path, name):
    refused_by_load(saved(tmp_path / "wrong.ckpt", CONTENTS[name]))


def refused_by_load(path: Path, why: str = "") -> None:
    with pytest.raises(UserError) as error:
        checkpoint.load(path)
    assert path.name in str(error.value)
    assert why in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 1000


# --- sizes ---

STACKED = {"_target_": "headscope.nn.StackedHeads", "_partial_": True}


@pytest.mark.parametrize(
    "sizes",
    [
        *({key: 10**size} for key in ("layers", "embed_dim", "heads") for size in (4, 8, 12)),
        *({key: 10**size} for key in ("head_dim", "kv_heads") for size in (4, 8, 12)),
        *({"block_size": 10**size} for size in (6, 8, 12)),
        *({"ngrams": 10**size} for size in (3, 8)),
        *({"ngrams": 2, "ngram_buckets": 10**size} for size in (8, 12)),
        {"layers": 9_999, "heads": 4_096, "head_dim": 1, "attention": STACKED},
        {"heads": 4_096, "head_dim": 1, "attention": STACKED},
        {"position": {"_target_": "headscope.nn.HeadBias", "_partial_": True}, "block_size": 9_000},
        {
            "position": {
                "_target_": "headscope.nn.Relative",
                "_partial_": True,
                "buckets": 10**10,
                "max_distance": 10**11,
            }
        },
        {"layers": "x"},
        {"layers": None},
        {"layers": -1},
        {"head_dim": 2.5},
    ],
    ids=str,
)
def test_sizes_that_are_not_those_of_the_weights_are_refused_before_building(tmp_path, sizes):
    path = saved(
        tmp_path / "sizes.ckpt", lambda stored: stored["headscope"]["config"]["model"].update(sizes)
    )
    tracemalloc.start()  # of Python's own objects; tensors cannot be larger than the file's
    try:
        refused_by_load(path)
        assert tracemalloc.get_traced_memory()[1] < 2**25
    finally:
        tracemalloc.stop()


def test_a_tokenizer_of_another_size_is_refused(tmp_path):
    for tokenizer in ({"kind": "char", "alphabet": "abc"}, {"kind": "char", "alphabet": "aa"}):
        refused_by_load(saved(tmp_path / "other.ckpt", own("tokenizer", tokenizer)))


# --- no file ---


def test_what_is_no_regular_file_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.ckpt")
    refused(tmp_path / "pipe.ckpt", "not a file")
    (tmp_path / "device.ckpt").symlink_to("/dev/zero")
    refused(tmp_path / "device.ckpt", "not a file")
    (tmp_path / "folder.ckpt").mkdir()
    refused(tmp_path / "folder.ckpt", "a folder")


def test_an_ordered_state_dict_and_every_choice_of_the_optimizer_are_read(tmp_path):
    stored, _ = content(configuration("optimizer=adamw"))
    stored["state_dict"] = OrderedDict(stored["state_dict"])
    stored["optimizer_states"] = [{"state": {0: {"step": torch.tensor(3.0)}}, "param_groups": []}]
    torch.save(stored, tmp_path / "a.ckpt")
    assert same(read(tmp_path / "a.ckpt"), stored)
