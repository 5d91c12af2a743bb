"""Folders from strangers: refused in one line, without running code."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from foreign_models import edit, foreign_model, write_folder
from safetensors.torch import load_file, save_file

from headscope.conversion.folder import load_folder
from headscope.errors import UserError

WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    return write_folder(folder, foreign_model("GPT2LMHeadModel"))


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """A valid folder, to be damaged."""
    copy = tmp_path / "model"
    copy.mkdir()
    for file in whole.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    return copy


def refused(folder: Path, *words: str) -> None:
    with pytest.raises(UserError) as caught:
        load_folder(folder)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 600
    for word in (str(folder), *words):
        assert word in message


class Attack:
    """A pickle that creates a file when it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("attacked",)


def test_a_pickle_is_not_opened(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (folder / WEIGHTS).unlink()
    for name in ("pytorch_model.bin", WEIGHTS):
        (folder / name).write_bytes(pickle.dumps(Attack()))
        refused(folder, "safetensors" if name != WEIGHTS else "SafetensorError")
    assert not (folder / "attacked").exists()


def test_code_in_the_folder_is_not_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (folder / "modeling.py").write_text("import os; os.mkdir('attacked')")
    auto_map = {"AutoConfig": "modeling.C", "AutoModelForCausalLM": "modeling.M"}
    edit(folder / "config.json", auto_map=auto_map)
    edit(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["modeling.T", "modeling.T"]})
    load_folder(folder)
    edit(folder / "config.json", auto_map=auto_map, model_type="own")
    refused(folder, "model_type=own", "not run")
    assert not (folder / "attacked").exists()


def test_damaged_safetensors(folder: Path) -> None:
    whole = (folder / WEIGHTS).read_bytes()
    for content in (b"", whole[:100], whole[:-8]):
        (folder / WEIGHTS).write_bytes(content)
        refused(folder)


def changed(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    weights = load_file(folder / WEIGHTS)
    change(weights)
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})


def test_wrong_weights(folder: Path) -> None:
    whole = (folder / WEIGHTS).read_bytes()
    norm, embedding = "transformer.ln_f.weight", "transformer.wte.weight"
    cases: list[tuple[Callable[[dict[str, torch.Tensor]], object], str]] = [
        (lambda weights: weights.pop(norm), "missing_keys"),
        (lambda weights: weights.update(strange=torch.ones(2)), "unexpected_keys strange"),
        (lambda weights: weights.update({norm: torch.ones(17)}), "ln_f.weight"),
        (
            lambda weights: weights.update({norm: torch.full((16,), torch.nan)}),
            "in our norm.weight",
        ),
        (lambda weights: weights[embedding][5, 5].fill_(torch.inf), "in our embedding.weight"),
        (lambda weights: weights.update({embedding: torch.ones(4, 16)}), "wte.weight"),
    ]
    for change, word in cases:
        (folder / WEIGHTS).write_bytes(whole)
        changed(folder, change)
        refused(folder, word)


def test_a_config_that_is_no_object(folder: Path) -> None:
    for content in ("[1]", "{", '{"vocab_size": NaN}'):
        (folder / "config.json").write_text(content)
        refused(folder)
    (folder / "config.json").unlink()
    refused(folder, "config.json")
