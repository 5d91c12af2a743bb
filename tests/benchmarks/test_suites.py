"""The laws of every suite: all sides are measured, files and tables hold the figures, and mistakes
are reported in one line."""

import json
import math
import shlex
from itertools import chain, repeat
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from matplotlib.image import imread
from running import SMALL, Script

from benchmarks import others, sampling
from benchmarks.runner import WITHOUT_RUN
from benchmarks.viewer import ACTIONS, OPEN
from headscope.cli.conf import choices_of
from headscope.data.module import TokenDataModule
from headscope.nn import GPT
from headscope.trained.generation import compile_decoding
from headscope.training.callbacks.heads import HeadWatch
from headscope.training.module import LanguageModel

pytestmark = pytest.mark.slow

SAMPLED = {"vocab_size": 19, "block_size": 12, "embed_dim": 16, "layers": 2, "heads": 2}
WORDS = {
    "training": [
        *("model=gpt2", "optimizer=adamw", "suite.steps=3", "suite.warmup_steps=2", *SMALL),
        *("suite.rounds=2", "suite.peers=true"),
    ],
    "sampling": [
        *(f"suite.{case}.{key}={SAMPLED[key]}" for case in ("small", "large") for key in SAMPLED),
        *("suite.small.tokens=30", "suite.large.prompt=3", "suite.large.tokens=8"),
        "suite.rounds=2",
    ],
    "attention": ["suite.rounds=2", "suite.shapes=[[5,24,6],[2,15,3]]"],
    "encoding": ["suite.megabytes=[1]"],
    "watching": ["suite.rounds=1", "trainer.max_steps=4", *SMALL],
    "viewer": ["suite.rounds=2", "suite.steps=4", "suite.shapes=[[2,2,8],[1,1,3]]"],
    "race": [
        *("experiment=speedrun_cpu", "suite.max_steps=6", "suite.every_steps=2"),
        *("callbacks=plain", "data=text"),
    ],
}
SIDES = {
    "training": [["headscope", "bare loop", "transformers"]] * 3,
    "sampling": [
        ["no cache", "headscope", "headscope, compiled"],
        [
            *("transformers fp32", "transformers bf16"),
            *("headscope fp32", "headscope, compiled, fp32"),
            *("headscope bf16", "headscope, compiled, bf16"),
            *("headscope int8", "headscope, compiled, int8"),
        ],
    ],
    "encoding": [["bpe", "char", "byte"]],
    "watching": [["headscope, not watching", "headscope, watching"]],
    "viewer": [[OPEN, *ACTIONS]] * 2,
}
"""By the suite: the names of the rows of each table."""


@pytest.fixture
def measured(script: Script, speeches: Path) -> Any:
    """Runs a suite with its small words and others. Returns the tables, after what holds for every
    suite, and the note."""

    def measured(suite: str, *more: str) -> tuple[list[list[dict[str, Any]]], str]:
        words = [f"suite={suite}", *WORDS[suite]]
        words += [f"data.path={speeches}"] if suite not in WITHOUT_RUN else []
        said = script("benchmark", *words, *more)
        assert said.code == 0, said.err
        made = {path.name: path for path in Path("outputs").iterdir()}  # git ignores this folder
        assert {path.name for path in Path().iterdir()} - {"data"} == {"outputs"}
        assert made.keys() == {f"benchmark_{suite}.{kind}" for kind in ("json", "md", "png")}
        assert made[f"benchmark_{suite}.md"].read_text() == said.out
        assert imread(made[f"benchmark_{suite}.png"]).std() > 0.05
        figures = json.loads(made[f"benchmark_{suite}.json"].read_text())
        for word in [*words, *more]:
            assert word.partition("=")[2] in " ".join(shlex.split(figures["command"]))
        for group in figures["groups"]:
            assert group["title"] in said.out
            for row in group["rows"]:
                assert f"\n| {row['side']} " in said.out
                for spread in (value for value in row.values() if isinstance(value, dict)):
                    assert 0 <= spread["min"] <= spread["median"] <= spread["max"] < math.inf
        assert figures["note"] in said.out
        return [group["rows"] for group in figures["groups"]], said.out

    return measured


@pytest.mark.parametrize("suite", SIDES)
def test_every_side_is_measured(suite, measured, monkeypatch, request):
    if suite == "viewer":
        request.getfixturevalue("browser")
    # Compiles only the small model. tests/trained/test_sampling.py compiles in every precision.
    steps = chain([compile_decoding], repeat(lambda model: model.next_logits))
    monkeypatch.setattr(sampling, "compile_decoding", lambda model: next(steps)(model))
    tables, said = measured(suite)
    assert [[row["side"] for row in rows] for rows in tables] == SIDES[suite]
    for row in (row for rows in tables for row in rows):
        if suite == "training":
            tokens = round(row["tokens_per_second"] * row["milliseconds"]["median"] / 1e3)
            assert f" {tokens:,} tokens per step" in said
            assert 0 < row["mfu"] < 1
        if suite == "encoding":
            assert row["peak_memory_mib"]["median"] > 20  # numpy and torch
            assert 0 < row["tokenizer_seconds"]["median"] < row["seconds"]["median"]
        if suite == "watching":
            watches = row["side"] == "headscope, watching"
            assert (row["watching_seconds"]["median"] > 0) == watches
            assert (0 < row["watching_percent"]["median"] < 100) == watches


def test_attention_measures_every_choice(measured):
    (even, odd), _ = measured("attention")
    names = [row["side"] for row in even]
    assert {name.partition(",")[0] for name in names} == {*choices_of("model/attention")}
    assert "multi_head, explicit" in names
    divides_3 = [name.replace("kv_heads=2", "kv_heads=1") for name in names]
    assert [row["side"] for row in odd] == divides_3


def test_the_clock_stops_where_the_target_is_reached(measured, monkeypatch):
    every: set[int] = set()
    dataloader = TokenDataModule.val_dataloader

    def observed(data: TokenDataModule) -> Any:
        every.add(data.validation_every)
        return dataloader(data)

    monkeypatch.setattr(TokenDataModule, "val_dataloader", observed)
    [runs], said = measured("race", "suite.target=3.6", "suite.seeds=[1,2]")
    assert every == {1}  # the whole split
    sides = ["speedrun_cpu"] * 2 + ["nanogpt_cpu"] * 2
    assert [(run["side"], run["seed"]) for run in runs] == [*zip(sides, [1, 2, 1, 2], strict=True)]
    for run in runs:
        assert [mark["step"] for mark in run["marks"]] == [2, 4, 6]
        below = [mark["seconds"] for mark in run["marks"] if mark["loss"] <= 3.6]
        assert run["target_seconds"] == (below[0] if below else None)
        assert run["train_seconds"] == run["marks"][-1]["seconds"]
    first, second = runs[:2], runs[2:]
    assert all(run["target_seconds"] for run in first)
    assert not any(run["target_seconds"] for run in second)  # warms up for longer than 6 steps
    assert first[0]["marks"] != first[1]["marks"]
    faster = [b["train_seconds"] / a["target_seconds"] for a, b in zip(first, second, strict=True)]
    assert "reaches 3.6 nats per token" in said
    assert f"; {min(faster):.2f} to {max(faster):.2f})" in said


def test_without_a_target_whole_trainings_are_compared(measured):
    """Recipes with different tokenizers, in bits per byte."""
    Path("data").mkdir()
    letters = Random(0).choices("abcdefgh ", k=200_000)  # enough for BPE with 8192 tokens
    Path("data/letters.txt").write_text("".join(letters))
    words = ["data.path=data/letters.txt", "suite.against=null", "suite.target=null"]
    [[first, second]], said = measured("race", *words, "suite.seeds=[1]")
    assert "bits per byte:" in said
    assert (first["side"], second["side"]) == ("speedrun_cpu", "default")
    assert first["target_seconds"] is second["target_seconds"] is None
    faster = second["train_seconds"] / first["train_seconds"]
    assert f"finishes training {faster:.2f} times as fast as default" in said


@pytest.mark.parametrize(
    ("train", "reason"),
    [("exit('no data')", "train.py failed: no data"), ("print()", "the log of train.py")],
)
def test_a_train_py_that_fails_is_told_in_one_line(
    script, speeches, tmp_path_factory, train, reason
):
    folder = tmp_path_factory.mktemp("nanogpt")
    (folder / "config").mkdir()
    for name in others.FILES:
        (folder / name).write_text(train)
    words = [*WORDS["race"], f"data.path={speeches}", f"suite.nanogpt={folder}"]
    said = script("benchmark", "suite=race", *words)
    assert said.code == 1
    assert said.err.splitlines()[-1].startswith(f"Error: suite.nanogpt: {reason}")
    assert {path.name for path in folder.iterdir()} == {Path(f).parts[0] for f in others.FILES}


def changes_weights(measure: Any) -> Any:
    def disturb(watch: HeadWatch, model: GPT, *given: Any) -> Any:
        measured = measure(watch, model, *given)
        with torch.no_grad():
            model.embedding.weight[0, 0] += 1e-3
        return measured

    return disturb


WRONG: dict[str, tuple[str, Any, str, Any]] = {
    "watching changed the weights": ("watching", HeadWatch, "measure", changes_weights),
    "began at loss": (
        *("training", LanguageModel, "training_step"),
        lambda step: lambda *given: 1.01 * step(*given),
    ),
    "compiled samples another text": (
        *("sampling", sampling, "compile_decoding"),
        lambda _: lambda model: lambda *given: -model.next_logits(*given),
    ),
}
"""By the message: a suite, and what makes one of its sides wrong."""


@pytest.mark.parametrize("message", WRONG)
def test_sides_that_do_not_agree_are_found_out(script, speeches, monkeypatch, message):
    suite, owner, name, change = WRONG[message]
    monkeypatch.setattr(owner, name, change(getattr(owner, name)))
    data = [] if suite in WITHOUT_RUN else [f"data.path={speeches}"]
    said = script("benchmark", f"suite={suite}", *WORDS[suite], *data)
    assert said.code == 1
    assert message in said.err


def test_only_an_earlier_result_is_replaced(script):
    mine = {"list.json": "[]", "other.json": '{"suite": 1}', "chart.png": "x", "notes.md": "x"}
    short = ["benchmark", "suite=attention", "suite.rounds=1", "suite.shapes=[[8,8,2]]"]
    for name, text in mine.items():
        Path(name).write_text(text)
    for output in ("list.json", "other.json", "chart.json", "notes.json"):
        said = script(*short, f"output={output}")
        assert said.code == 1
        assert f"output={output}" in said.err
        assert "is not a result of a benchmark" in said.err
    assert {name: Path(name).read_text() for name in mine} == mine
    for _ in range(2):
        said = script(*short, "output=made.json")
        assert said.code == 0
        assert "output=" not in said.out  # the tables show a command for the reader
