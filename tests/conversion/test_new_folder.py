"""The laws of writing a folder: if the disk is full, one line says so, what differs from the model
is not kept, and nothing is left."""

import os
import resource
from functools import partial

import gguf
import pytest
from choices import slow_unless
from conversion.models import saved

from headscope.conversion import export, nanogpt
from headscope.conversion.convert import FORMATS, export_model
from headscope.conversion.imported import write_checkpoint
from headscope.conversion.loaded import Loaded
from headscope.conversion.new_folder import new_folder
from headscope.conversion.proof import NotEqual
from headscope.data.tokenizer import CharTokenizer, bpe
from headscope.errors import UserError

GPT2 = ("model=gpt2", None)
MODELS = {
    "nanogpt": ("model=gpt2 model/activation=gelu", CharTokenizer("".join(map(chr, range(256))))),
    "gguf": ("model=gpt2", bpe(["a text"], vocab_size=257)),
}


@pytest.mark.parametrize("to", [*FORMATS, "checkpoint"])
def test_a_full_disk_is_said_in_one_line_and_leaves_nothing(to, tmp_path):
    loaded = saved(tmp_path / "run", *MODELS.get(to, GPT2))
    write, size = partial(export_model, loaded, to), ""
    if to == "checkpoint":
        write, size = partial(write_checkpoint, loaded=loaded), r"it needs at least [\d,]+ bytes.*"
    expected = f"could not be written: (File too large|the disk is full).*{size} free"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, hard))  # the largest file, in bytes
    try:
        with pytest.raises(UserError, match=expected):
            write(tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


CHANGED = {
    "nanogpt": (nanogpt, "compare", lambda ours, theirs: export.proof.compare(ours, theirs + 2e-4)),
    "gguf": (gguf.GGUFWriter, "add_tensor", None),
}
