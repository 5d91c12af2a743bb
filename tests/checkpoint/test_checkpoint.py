"""The laws of checkpoint files: a whole one gives the model back, any other a ValueError."""

import copy
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from checkpoint_files import configuration, content, save
from choices import PAIRS, every_pair
from composing import training_config

from headscope import checkpoint
from headscope.config.text import TextFilesConfig
from headscope.data.own_files import TextFiles
from headscope.data.tokenizer import CharTokenizer, byte


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("run") / "whole.safetensors"
    save(content()[0], path)
    return path


# --- a whole file ---


@every_pair
def test_saved_then_loaded_gives_the_same_logits(tmp_path, pair):
    attention, position = pair
    number = PAIRS.index(pair)
    tokenizer = (byte([]), CharTokenizer("abcé\n"))[number % 2]
    config = copy.deepcopy(configuration(f"model/attention={attention}"))
    config["model"]["position"] = configuration(f"model/position={position}")["model"]["position"]
    config["model"] |= {"tied_head": number % 3 > 0, "qkv_bias": number % 4 > 1, "dropout": 0.5}
    saved, model = content(config, tokenizer)
    save(saved, tmp_path / "a.safetensors")
    loaded = checkpoint.load(tmp_path / "a.safetensors")
    tokens = torch.randint(tokenizer.vocab_size, (2, 8))
    assert torch.equal(loaded.model(tokens), model.eval()(tokens))
    assert asdict(loaded.config) == config
    assert loaded.step == 7
    assert loaded.tokenizer.state() == tokenizer.state()
    # No mask and no computed table takes up room in the file.
    in_file = checkpoint.read(tmp_path / "a.safetensors").weights()
    assert set(in_file) == {name for name, _ in model.named_parameters(remove_duplicate=False)}


@pytest.mark.parametrize("tokenizer", [byte([]), CharTokenizer("abcé\n")])
def test_a_model_with_a_document_mask_knows_the_end_of_text_of_its_tokenizer(tmp_path, tokenizer):
    saved, model = content(configuration("model.document_mask=true"), tokenizer)
    save(saved, tmp_path / "a.safetensors")
    loaded = checkpoint.load(tmp_path / "a.safetensors")
    assert loaded.model.end_of_text == model.end_of_text == loaded.tokenizer.end_of_text
    longer = checkpoint.with_block_size(loaded, 16)
    assert longer.end_of_text == loaded.tokenizer.end_of_text
    del saved["config"]["model"]["document_mask"]  # a checkpoint of before this key
    save(saved, tmp_path / "old.safetensors")
    assert checkpoint.load(tmp_path / "old.safetensors").model.end_of_text is None


def test_a_loaded_model_outlives_its_file(tmp_path, whole):
    copy = tmp_path / "copy.safetensors"
    copy.write_bytes(whole.read_bytes())
    loaded = checkpoint.load(copy)
    tokens = torch.arange(8)[None]
    before = loaded.model(tokens)
    copy.unlink()
    copy.write_bytes(b"")
    assert torch.equal(loaded.model(tokens), before)


def test_loading_needs_neither_lightning_nor_datasets_nor_figures(whole):
    program = (
        "import sys\n"
        "from headscope import checkpoint, generation\n"
        f"loaded = checkpoint.load({str(whole)!r})\n"
        "list(generation.generate_text(\n"
        "    loaded.model, loaded.tokenizer, 'a', max_new_tokens=2, seed=1))\n"
        "for name in ('lightning', 'datasets', 'matplotlib', 'tensorboard', 'tokenizers'):\n"
        "    assert name not in sys.modules, name\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=whole.parent)


def test_a_configurations_own_corpus_is_built_to_the_letter_and_named(tmp_path, capsys):
    file = tmp_path / "odd ${name}.txt"
    file.write_text("text")
    config = training_config()
    config.data = TextFilesConfig(path=str(file))
    corpus = checkpoint.stored_corpus(config)
    assert isinstance(corpus, TextFiles)
    assert corpus.files == [file]
    assert f"data.path={file}" in capsys.readouterr().err


# --- which file is meant ---


def test_find_takes_a_file_a_run_or_the_newest_run(tmp_path):
    best, last = (tmp_path / "a/checkpoints" / f"{name}.safetensors" for name in ("best", "last"))
    outputs = {"outputs": tmp_path}
    with pytest.raises(ValueError, match="no run in"):
        checkpoint.find(None, **outputs)
    best.parent.mkdir(parents=True)
    (tmp_path / "latest").write_text("a\n")
    for given in (None, str(tmp_path / "a")):
        with pytest.raises(ValueError, match="has no checkpoints"):
            checkpoint.find(given, **outputs)
        best.with_suffix(".ckpt").touch()
        with pytest.raises(ValueError, match="older version of headscope"):
            checkpoint.find(given, **outputs)
        best.with_suffix(".ckpt").unlink()
    for file in (last, best):  # the best, where there is one
        save(content()[0], file)
        assert checkpoint.find(None, **outputs) == file
        assert checkpoint.find(str(tmp_path / "a"), **outputs) == file
    assert checkpoint.find(str(last), **outputs) == last
    for missing in ("b", "a/checkpoints/none.safetensors"):
        with pytest.raises(ValueError, match=f"{missing} does not exist"):
            checkpoint.find(str(tmp_path / missing), **outputs)
    (tmp_path / "latest").write_text("gone\n")
    with pytest.raises(ValueError, match=r"names 'gone', which is not a run"):
        checkpoint.find(None, **outputs)


def test_a_model_of_another_tool_must_be_converted(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"scripts/convert\.py"):
        checkpoint.find(str(tmp_path))
    (tmp_path / "ckpt.pt").touch()
    with pytest.raises(ValueError, match=r"scripts/convert\.py"):
        checkpoint.read(tmp_path / "ckpt.pt")


def test_a_device_that_is_not_here_is_refused():
    assert checkpoint.pick_device("cpu") == torch.device("cpu")
    assert checkpoint.pick_device("auto").type in ("cpu", "cuda", "mps")
    with pytest.raises(ValueError, match="device=tpu is not available"):
        checkpoint.pick_device("tpu")
    with pytest.raises(ValueError, match="device=cpu:banana is not available"):
        checkpoint.pick_device("cpu:banana")
