"""Folders from strangers: refused in one line, without running code."""

import pickle

import pytest
import torch
from foreign_models import edit, foreign_model, write_folder
from refusals import Attack, refused
from safetensors.torch import load_file, save_file

from headscope.conversion.folder import load_folder

WEIGHTS = "model.safetensors"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A valid folder, to be damaged."""
    monkeypatch.chdir(tmp_path)
    return write_folder(tmp_path, foreign_model("GPT2LMHeadModel"))


def assert_refused(folder, *words):
    with refused(folder, *words):
        load_folder(folder)
    assert not (folder / "attacked").exists()


def test_a_pickle_is_not_opened(folder):
    (folder / WEIGHTS).unlink()
    for name, word in (("pytorch_model.bin", "safetensors"), (WEIGHTS, "SafetensorError")):
        (folder / name).write_bytes(pickle.dumps(Attack()))
        assert_refused(folder, word)


def test_code_in_the_folder_is_not_run(folder):
    (folder / "own.py").write_text("import os; os.mkdir('attacked')")
    edit(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["own.T", "own.T"]})
    edit(folder / "config.json", auto_map={"AutoConfig": "own.C", "AutoModelForCausalLM": "own.M"})
    load_folder(folder)
    edit(folder / "config.json", model_type="own")
    assert_refused(folder, "model_type=own", "not run")


NORM, EMBEDDING = "transformer.ln_f.weight", "transformer.wte.weight"
CHANGES = [
    ({NORM: None}, "missing_keys"),
    ({"strange": torch.ones(2)}, "unexpected_keys strange"),
    ({NORM: torch.ones(17)}, "ln_f.weight"),
    ({EMBEDDING: torch.ones(4, 16)}, "wte.weight"),
    ({NORM: torch.tensor([torch.nan] * 16)}, "in our norm.weight"),
    ({EMBEDDING: torch.ones(264, 16).fill_diagonal_(torch.inf)}, "in our embedding.weight"),
]


def test_wrong_weights(folder):
    whole = (folder / WEIGHTS).read_bytes()
    weights = load_file(folder / WEIGHTS)
    for change, word in CHANGES:
        changed = {name: each for name, each in (weights | change).items() if each is not None}
        save_file(changed, folder / WEIGHTS, metadata={"format": "pt"})
        assert_refused(folder, word)
    for content in (b"", whole[:100], whole[:-8]):
        (folder / WEIGHTS).write_bytes(content)
        assert_refused(folder)


def test_a_config_that_is_no_object(folder):
    for content in ("[1]", "{", '{"vocab_size": NaN}'):
        (folder / "config.json").write_text(content)
        assert_refused(folder)
    (folder / "config.json").unlink()
    assert_refused(folder, "config.json")
