"""The laws of suite=race: both recipes are trained whole, and the clock stops at the target."""

import json
from pathlib import Path

import pytest
from running import Script


@pytest.fixture
def words(speeches: Path) -> list[str]:
    sizes = ["suite.max_steps=6", "suite.every_steps=2", "suite.seeds=[1,2]", "callbacks=plain"]
    text = ["data=text", f"data.path={speeches}"]
    return ["suite=race", "experiment=speedrun_cpu", *text, *sizes]


def test_the_clock_stops_where_the_target_is_reached(script: Script, words: list[str]) -> None:
    said = script("benchmark", *words, "suite.target=3.6", "output=made.json")
    assert said.code == 0, said.err
    figures = json.loads(Path("made.json").read_text())
    assert {path.name for path in Path().iterdir()} == {"data", "made.json", "made.png"}
    assert list(figures["runs"]) == ["speedrun_cpu", "nanogpt_cpu"]
    for runs in figures["runs"].values():
        assert [run["seed"] for run in runs] == [1, 2]
        for run in runs:
            assert [mark["step"] for mark in run["marks"]] == [2, 4, 6]
            seconds = [mark["seconds"] for mark in run["marks"]]
            assert seconds == sorted(seconds)
            below = [mark for mark in run["marks"] if mark["loss"] <= 3.6]
            assert run["reached"] == (below[0] if below else None)
            assert run["seconds"] == (below[0] if below else run["marks"][-1])["seconds"]
    first, second = figures["runs"].values()
    assert all(run["reached"] for run in first)
    assert not any(run["reached"] for run in second)  # its warm-up is longer than these six steps
    assert first[0]["marks"] != first[1]["marks"]
    faster = sorted(b["seconds"] / a["seconds"] for a, b in zip(first, second, strict=True))
    assert figures["times_faster"]["min"] == pytest.approx(faster[0], abs=1e-3)
    assert "times as fast" in said.out


def test_without_a_target_whole_trainings_are_compared(script: Script, words: list[str]) -> None:
    said = script("benchmark", *words, "suite.target=null", "suite.seeds=[1]")
    assert said.code == 0, said.err
    figures = json.loads(Path("benchmark_race.json").read_text())
    for (run,) in figures["runs"].values():
        assert run["reached"] is None
        assert run["seconds"] == run["marks"][-1]["seconds"]


@pytest.mark.parametrize(
    "wrong", ["suite.against=speedrun_cpu", "suite.seeds=[]", "suite.every_steps=0"]
)
def test_a_race_that_is_none_is_refused(script: Script, words: list[str], wrong: str) -> None:
    said = script("benchmark", *words, wrong)
    assert said.code == 1
    assert said.err.count("\n") == 1
    assert wrong.split("=")[0] in said.err


def test_losses_of_different_texts_or_tokens_are_not_raced(script: Script) -> None:
    for words in (["experiment=heads"], ["data=tinyshakespeare"]):
        said = script("benchmark", "suite=race", *words)
        assert said.code == 1
        assert "have not the same" in said.err
        assert said.err.count("\n") == 1
