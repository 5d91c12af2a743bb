"""The laws of to=safetensors: the folder gives the same model, and a damaged one is refused."""

import json
import os
from dataclasses import asdict

import pytest
import torch
from conversion.models import CHOICES, saved
from safetensors.torch import load_file, save_file

import headscope
from headscope.conversion.convert import export_model
from headscope.conversion.plain import load_plain
from headscope.data.tokenizer import CharTokenizer


@pytest.mark.parametrize("words", CHOICES)
def test_written_then_loaded_gives_the_same_model(words, tmp_path):
    number = CHOICES.index(words)
    loaded = saved(tmp_path, words, CharTokenizer("abcé\n") if number % 2 else None)
    export_model(loaded, "safetensors", tmp_path / "out")
    again = headscope.load(tmp_path / "out")
    tokens = torch.randint(loaded.tokenizer.vocab_size, (2, 8))
    assert torch.equal(again.model(tokens), loaded.model(tokens))
    assert asdict(again.config) == asdict(loaded.config)
    assert again.tokenizer.state() == loaded.tokenizer.state()
    assert (again.step, again.precision) == (loaded.step, loaded.precision)
    names = {name for name, _ in loaded.model.named_parameters()}
    assert set(load_file(tmp_path / "out" / "model.safetensors")) == names


@pytest.fixture
def folder(tmp_path):
    export_model(saved(tmp_path, "model=gpt2"), "safetensors", tmp_path / "out")
    return tmp_path / "out"


def truncated(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-4])


def huge_header(folder):
    (folder / "model.safetensors").write_bytes((2**60).to_bytes(8, "little") + b"{}")


def pipe(folder):
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")


def changed(change):
    def apply(folder):
        weights = load_file(folder / "model.safetensors")
        change(weights)
        save_file(weights, folder / "model.safetensors")

    return apply


def configured(change):
    def apply(folder):
        content = json.loads((folder / "config.json").read_text())
        change(content)
        (folder / "config.json").write_text(json.dumps(content))

    return apply


DAMAGES = {
    "no weights": lambda folder: (folder / "model.safetensors").unlink(),
    "no configuration": lambda folder: (folder / "config.json").unlink(),
    "truncated": truncated,
    "huge header": huge_header,
    "pipe": pipe,
    "nan": changed(lambda w: w["norm.weight"].fill_(torch.nan)),
    "shape": changed(lambda w: w.update({"norm.weight": torch.zeros(3)})),
    "missing": changed(lambda w: w.pop("norm.weight")),
    "integers": changed(lambda w: w.update({"norm.weight": torch.zeros(8).long()})),
    "list": lambda folder: (folder / "config.json").write_text("[]"),
    "no JSON": lambda folder: (folder / "config.json").write_text("{"),
    "larger": configured(lambda c: c["headscope"]["config"]["model"].update(layers=9000)),
    "part": configured(
        lambda c: c["headscope"]["config"]["model"]["position"].update(_target_="os.system")
    ),
    "step": configured(lambda c: c.update(global_step="1")),
    "format": configured(lambda c: c["headscope"].update(format=99)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_folder_is_refused_in_one_line(folder, damage):
    DAMAGES[damage](folder)
    with pytest.raises(ValueError, match=r"out (is not a folder of|does not match)") as refusal:
        load_plain(folder)
    assert "\n" not in str(refusal.value)
