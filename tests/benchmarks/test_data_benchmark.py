"""The laws of suite=data: both sides cut what stands in the file, and each is measured as what it
is."""

import json
import re
import shutil
import sys
import tempfile
from functools import partial
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from matplotlib.image import imread
from running import Script

from headscope.benchmarks.data import require_plain_slices, started, write_tokens
from headscope.benchmarks.data_side import OURS, PEER, SIDES, Task, memory_mib
from headscope.data import batches

WORDS = ["suite=data", "suite.rounds=2", "suite.batches=5", "model.block_size=16"]


@pytest.fixture
def task(tmp_path: Path) -> Task:
    """The tokens are their own places, so that a batch tells where it was cut."""
    path = tmp_path / "tokens.bin"
    np.arange(20_000, dtype=np.uint16).tofile(path)
    return Task(OURS, str(path), block_size=16, batch_size=3, seed=1, batches=5)


@pytest.fixture
def temporary(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are made."""
    folder = tmp_path_factory.mktemp("temporary")
    make = partial(tempfile.TemporaryDirectory, dir=folder)
    monkeypatch.setattr(tempfile, "TemporaryDirectory", make)
    return folder


def test_every_size_and_side_is_measured(script: Script, temporary: Path) -> None:
    said = script("benchmark", *WORDS, "suite.tokens=[20000,3000]")
    assert said.code == 0, said.err
    assert {path.name for path in Path().iterdir()} == {"benchmark_data.json", "benchmark_data.png"}
    assert not list(temporary.iterdir())
    assert imread("benchmark_data.png").std() > 0.05
    figures = json.loads(Path("benchmark_data.json").read_text())
    assert (figures["block_size"], figures["batch_size"]) == (16, 12)
    assert [size["tokens"] for size in figures["sizes"]] == [3000, 20000]
    for size in figures["sizes"]:
        assert f"{size['tokens']:,}" in said.out
        assert list(size["sides"]) == [OURS, PEER]
        for side in size["sides"].values():
            for figure in ("microseconds", "first_batch_milliseconds"):
                assert 0 < side[figure]["min"] <= side[figure]["median"] <= side[figure]["max"]
        assert 0 < size["ratio"]["min"] <= size["ratio"]["median"] <= size["ratio"]["max"]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not say")
def test_memory_is_of_the_process_and_no_page_of_the_file(tmp_path: Path) -> None:
    size = 100_000_000
    path = tmp_path / "tokens.bin"
    write_tokens(path, size, seed=0)
    with started(Task(OURS, str(path), block_size=1000, batch_size=100, seed=1, batches=900)) as it:
        it()  # has read nine tenths of the file
        memory = it.figures()["memory_mib"]
    assert memory["before"] > 20  # numpy and torch
    assert abs(memory["after"] - memory["before"]) < path.stat().st_size / 2**20 / 4

    before = memory_mib()
    assert before is not None
    held = np.fromfile(path, dtype=np.uint16)
    after = memory_mib()
    assert after is not None
    assert after - before > 0.9 * held.nbytes / 2**20


@pytest.mark.parametrize("side", SIDES)
def test_both_sides_make_batches_of_what_is_in_the_file(task: Task, side: str) -> None:
    seen = set()
    for inputs, targets in islice(SIDES[side](task, 3), 50):
        assert inputs.shape == targets.shape == (task.batch_size, task.block_size)
        assert inputs.dtype == targets.dtype == torch.int64
        assert torch.equal(targets, inputs + 1)
        assert torch.equal(inputs, inputs[:, :1] + torch.arange(task.block_size))
        seen |= set(inputs[:, 0].tolist())
    assert len(seen) > 140  # they are spread over the file


def test_batches_that_are_not_what_is_in_the_file_are_found_out(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_plain_slices(task)
    monkeypatch.setattr(batches, "inputs_and_targets", lambda windows: (windows[:, 1:],) * 2)
    with pytest.raises(RuntimeError, match="sequence 0 of batch 0 is not"):
        require_plain_slices(task)


def test_made_tokens_are_many_and_all_different(tmp_path: Path) -> None:
    write_tokens(tmp_path / "tokens", 10_200_000, seed=3)
    tokens = np.fromfile(tmp_path / "tokens", dtype=np.uint16)
    assert len(tokens) == 10_200_000
    counts = np.bincount(tokens, minlength=2**16)
    assert counts.min() > 0
    # Nothing comes again: neither from chunk to chunk nor, mostly, from token to token.
    assert not np.array_equal(tokens[:1000], tokens[10_000_000:][:1000])
    assert (tokens[1:] == tokens[:-1]).mean() < 1e-4


def test_a_process_that_fails_is_told_of(task: Task, tmp_path: Path) -> None:
    Path(task.path).unlink()
    with pytest.raises(RuntimeError, match="ended"), started(task) as side:
        side()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["suite.tokens=[]"], ["suite.tokens=[]"]),
        (["suite.tokens=[-5,20000]"], ["suite.tokens=[-5, 20000]", "at least 1"]),
        (["suite.tokens=[200,20000]"], ["200 training tokens", "12 x 16"]),
        (["suite.tokens=many"], ["suite.tokens"]),
        (["suite.batches=0"], ["suite.batches=0"]),
        (["suite.rounds=0"], ["suite.rounds=0"]),
        (["trainer.batch_size=0"], ["trainer.batch_size=0"]),
    ],
    ids=" ".join,
)
def test_a_mistake_is_told_in_one_line(
    script: Script, temporary: Path, arguments: list[str], words: list[str]
) -> None:
    said = script("benchmark", *WORDS, *arguments)
    assert (said.code, said.out) == (1, "")
    assert said.err.startswith("Error: ")
    assert said.err.count("\n") == 1
    for word in words:
        assert word in said.err
    assert not list(Path().iterdir())
    assert not list(temporary.iterdir())


def test_a_disk_without_room_is_told_before_anything_is_made(
    script: Script, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=2**30))
    said = script("benchmark", *WORDS, "suite.tokens=[1000000000]")
    assert said.code == 1
    assert re.fullmatch(
        r"Error: suite\.tokens=\[1000000000\] .* 1\.9 GiB .* 1\.0 GiB .*\n", said.err
    )
    assert not list(temporary.iterdir())
