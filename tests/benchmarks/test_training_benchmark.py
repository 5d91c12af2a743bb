"""The laws of suite=training: all sides do the same work, and each is timed as what it is."""

import json
from pathlib import Path

import pytest
import torch
from matplotlib.image import imread
from running import SMALL, Script
from small_gpt import make_gpt

from headscope.benchmarks.peers import hugging_face
from headscope.nn import Rotary
from headscope.training.module import LanguageModel

SIZES = {"vocab_size": 11, "block_size": 10, "embed_dim": 16, "layers": 2, "heads": 4}


@pytest.fixture
def words(speeches: Path) -> list[str]:
    short = ["suite.rounds=2", "suite.steps=3", "suite.warmup_steps=2"]
    return ["suite=training", *short, *SMALL, f"data.path={speeches}", "optimizer=adamw"]


def test_all_sides_train_alike(script: Script, words: list[str]) -> None:
    said = script("benchmark", *words, "suite.peers=true", "output=made.json")
    assert said.code == 0, said.err
    figures = json.loads(Path("made.json").read_text())
    assert {path.name for path in Path().iterdir()} == {"data", "made.json", "made.png"}
    assert imread("made.png").std() > 0.05
    sides = {"headscope", "bare loop", "transformers"}
    assert set(figures["milliseconds"]) == set(figures["ratio_to_bare_loop"]) == sides
    for times in figures["milliseconds"].values():
        assert 0 < times["min"] <= times["median"] <= times["max"]
    for name, speed in figures["tokens_per_second"].items():
        assert f"{speed:,}" in said.out
        assert name in said.out
        step = figures["milliseconds"][name]["median"] / 1e3
        assert speed * step == pytest.approx(figures["tokens_per_step"], rel=0.01)
        assert 0 < figures["mfu"][name] < 1
    first, last = figures["first_loss"], figures["last_loss"]
    assert first["headscope"] == first["bare loop"] == pytest.approx(first["transformers"], 1e-4)
    assert last["headscope"] == last["bare loop"] == pytest.approx(last["transformers"], 0.02)
    assert last["headscope"] < first["headscope"]


def test_sides_that_do_not_do_the_same_are_found_out(
    script: Script, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    step = LanguageModel.training_step
    monkeypatch.setattr(LanguageModel, "training_step", lambda *given: 1.01 * step(*given))
    said = script("benchmark", *words)
    assert said.code == 1
    assert "began at loss" in said.err
    assert "This is a bug in headscope" in said.err


def test_dropout_would_hide_other_work(script: Script, words: list[str]) -> None:
    said = script("benchmark", *words, "model.dropout=0.1")
    assert said.code == 1
    assert "suite=training takes model.dropout=0" in said.err


@pytest.mark.parametrize("bias", [True, False])
def test_the_model_of_transformers_gives_our_logits(bias: bool) -> None:
    torch.manual_seed(0)
    model = make_gpt(**SIZES, bias=bias, qkv_bias=bias).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    tokens = torch.randint(11, (2, 10))
    torch.testing.assert_close(hugging_face(model)(tokens).logits, model(tokens))


@pytest.mark.parametrize(
    "other",
    [{"position": Rotary}, {"tied_head": False}, {"previous_tokens": 1}, {"logit_cap": 15.0}],
)
def test_a_model_that_is_no_gpt_2_is_not_compared(other: dict) -> None:
    with pytest.raises(ValueError, match=r"suite\.peers=false"):
        hugging_face(make_gpt(**SIZES, **other))
