"""The laws of every suite: all sides are measured, files and tables hold the figures, and mistakes
are reported in one line."""

import json
import math
import shlex
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.image import imread
from running import SMALL, Script

from benchmarks import sampling
from benchmarks.runner import WITHOUT_RUN
from benchmarks.viewer import ACTIONS, OPEN
from headscope.cli.conf import choices_of
from headscope.nn import GPT
from headscope.trained.generation import compile_decoding
from headscope.training.callbacks.heads import HeadWatch

pytestmark = pytest.mark.slow

SAMPLED = {"vocab_size": 19, "block_size": 12, "embed_dim": 16, "layers": 2, "heads": 2}
WORDS = {
    "training": [
        *("suite.steps=3", "suite.warmup_steps=2", *SMALL),
        "suite.rounds=2",
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
    "training": [["headscope", "bare loop"]] * 3,
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


def test_the_clock_stops_where_the_target_is_reached(measured):
    [runs], said = measured("race", "suite.target=3.6", "suite.seeds=[1,2]")
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


def test_watching_that_changes_the_weights_is_found_out(script, speeches, monkeypatch):
    measure = HeadWatch.measure

    def disturbing(watch: HeadWatch, model: GPT, *given: Any) -> Any:
        with torch.no_grad():
            model.embedding.weight[0, 0] += 1e-3
        return measure(watch, model, *given)

    monkeypatch.setattr(HeadWatch, "measure", disturbing)
    said = script("benchmark", "suite=watching", *WORDS["watching"], f"data.path={speeches}")
    assert said.code == 1
    assert "watching changed the weights" in said.err


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
