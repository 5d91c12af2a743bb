"""The laws of writing a folder: if the disk is full, one line says so, and nothing is left."""

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest
from conversion.models import saved

from headscope.conversion.convert import FORMATS, export_model
from headscope.conversion.imported import write_checkpoint
from headscope.conversion.new_folder import new_folder
from headscope.data.tokenizer import CharTokenizer, bpe
from headscope.errors import UserError


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Limits the size of new files to `size` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("to", [*FORMATS, "checkpoint"])
def test_a_full_disk_is_said_in_one_line_and_leaves_nothing(to, tmp_path):
    if to == "gguf":
        pytest.importorskip("gguf")
    words = "model=gpt2 model/activation=gelu" if to == "nanogpt" else "model=gpt2"
    tokenizer = CharTokenizer("".join(map(chr, range(32, 256)))) if to == "nanogpt" else None
    if to == "gguf":
        tokenizer = bpe(["a text"], vocab_size=257)
    loaded = saved(tmp_path / "run", words, tokenizer)
    write: Callable = partial(export_model, loaded, to)
    if to == "checkpoint":
        write = partial(write_checkpoint, loaded=loaded)
    size = r"it needs at least [\d,]+ bytes.*" if to == "checkpoint" else ""
    expected = f"could not be written: (File too large|the disk is full).*{size} free"
    with largest_file(12_000), pytest.raises(UserError, match=expected):
        write(tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_what_a_killed_process_with_the_same_id_left_is_removed(tmp_path):
    left = tmp_path / f".out.{os.getpid()}.part"
    left.mkdir()
    (left / "old").touch()
    with new_folder(tmp_path / "out") as folder:
        (folder / "new").touch()
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "new"]
