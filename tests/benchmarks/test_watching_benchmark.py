"""The laws of suite=watching: it says what part watching took, and whether it changed anything."""

import json
from pathlib import Path

import pytest
import torch
from running import SMALL, Script

from headscope.training.callbacks.heads import HeadFigures


@pytest.fixture
def words(speeches: Path) -> list[str]:
    watched = ["callbacks.heads.every_steps=2", "callbacks.heads.images=2"]
    return ["suite=watching", *SMALL, *watched, f"data.path={speeches}", "trainer.max_steps=4"]


def test_it_says_what_part_of_a_run_watching_took(script: Script, words: list[str]) -> None:
    said = script("benchmark", *words)
    assert said.code == 0, said.err
    figures = json.loads(Path("benchmark_watching.json").read_text())
    assert figures == json.loads(said.out)
    assert figures["same_weights"] is True
    assert figures["steps"] == 4
    wall = figures["watched_seconds"]["wall"]["median"]
    assert 0 < figures["watching_seconds"]["median"] < wall
    share = figures["watching_seconds"]["median"] / wall
    assert figures["share"]["median"] == pytest.approx(share, abs=1e-3)
    assert figures["plain_seconds"]["training"]["median"] > 0
    assert not Path("outputs").exists()


def test_where_nothing_is_watched_nothing_is_measured(script: Script, words: list[str]) -> None:
    said = script("benchmark", "callbacks=plain", words[0], "trainer.max_steps=4")
    assert said.code == 1
    assert said.err.count("\n") == 1
    assert "callbacks.heads.every_steps=0" in said.err


def test_a_watcher_that_touches_the_model_is_found_out(
    script: Script, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def touch(self, model, step, writers) -> None:
        with torch.no_grad():
            model.embedding.weight[0, 0] += 1e-3

    monkeypatch.setattr(HeadFigures, "look", touch)
    said = script("benchmark", *words)
    assert said.code == 0, said.err
    assert json.loads(said.out)["same_weights"] is False
