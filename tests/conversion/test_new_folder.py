"""The laws of writing a folder: if the disk is full, one line says so, what differs from the model
is not kept, and nothing is left."""

import os
import resource
from functools import partial

import pytest
from choices import slow_unless
from conversion.models import saved

from headscope.conversion import export, nanogpt
from headscope.conversion.convert import FORMATS, export_model
from headscope.conversion.imported import write_checkpoint
from headscope.conversion.new_folder import new_folder
from headscope.conversion.proof import NotEqual, converted
from headscope.data.tokenizer import CharTokenizer, bpe
from headscope.errors import UserError
from headscope.trained import TrainedModel

gguf = pytest.importorskip("gguf")

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


def damaged_model(theirs, gpt, config):
    entries, model = converted(theirs, gpt, config)
    model.blocks[1].feed_forward.up_proj.bias.data += 0.1
    return entries, model


def damaged_file(weights, metadata):
    name = "model.blocks.0.attention.w"
    return export_save(weights | {name: weights[name] * 1.01}, metadata)


def damaged_tensor(writer, name, tensor):
    add_tensor(writer, name, tensor + 1e-6)


export_save, add_tensor = export.save, gguf.GGUFWriter.add_tensor
DAMAGES = {
    "nanogpt": (nanogpt, "converted", damaged_model),
    "gguf": (gguf.GGUFWriter, "add_tensor", damaged_tensor),
    "huggingface": (export, "save", damaged_file),  # of our own class
}


@pytest.mark.parametrize("to", slow_unless(["nanogpt", "gguf"], DAMAGES))
def test_what_differs_from_the_model_is_removed(to, tmp_path, monkeypatch):
    own = ("model/attention=additive model/position=relative", None)
    loaded = TrainedModel(**vars(saved(tmp_path / "run", *MODELS.get(to, own))))
    monkeypatch.setattr(*DAMAGES[to])
    write = loaded.save_pretrained if to == "huggingface" else partial(export_model, loaded, to)
    with pytest.raises(NotEqual, match=r"logits differ by|other tensors"):
        write(tmp_path / "new" / "out")
    assert {path.name for path in tmp_path.rglob("*")} <= {"run", "best.safetensors", "new"}


def test_what_a_killed_process_with_the_same_id_left_is_removed(tmp_path):
    left = tmp_path / f".out.{os.getpid()}.part"
    left.mkdir()
    (left / "old").touch()
    with new_folder(tmp_path / "out") as folder:
        (folder / "new").touch()
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "new"]
