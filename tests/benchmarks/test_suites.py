"""The laws of every suite: all sides are measured, files and tables hold the figures, and mistakes
are reported in one line."""

import json
import math
import shlex
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread
from running import SMALL, Script

from benchmarks import sampling
from benchmarks.runner import WITHOUT_RUN
from headscope.cli.conf import choices_of
from headscope.trained.generation.compiled import compile_decoding

pytestmark = pytest.mark.slow

SAMPLED = ["vocab_size=19", "block_size=12", "embed_dim=16", "layers=2", "heads=2"]
WORDS = {
    "training": [*SMALL, "suite.rounds=2", "suite.steps=3", "suite.warmup_steps=2"],
    "sampling": [
        *(f"suite.{case}.{each}" for case in ("small", "large") for each in SAMPLED),
        *("suite.small.tokens=30", "suite.large.prompt=3", "suite.large.tokens=8"),
        "suite.rounds=2",
    ],
    "attention": ["suite.rounds=2", "suite.shapes=[[5,24,6],[2,15,3]]"],
    "encoding": ["suite.megabytes=[1]"],
    "viewer": ["suite.rounds=2", "suite.steps=4", "suite.shapes=[[2,2,8],[1,1,3]]"],
    "race": [
        *("experiment=speedrun_cpu", "callbacks=plain", "data=text", "trainer.max_steps=6"),
        *("suite.every_steps=2", "suite.target=3.6", "suite.seeds=[1,2]"),
    ],
}
SIDES = {"training": ["headscope", "bare loop"], "encoding": ["bpe", "char", "byte"]}
"""By the suite: the names of the rows of each table."""


@pytest.mark.parametrize("suite", choices_of("suite"))
def test_every_side_is_measured(suite, script: Script, speeches: Path, monkeypatch, request):
    if suite == "viewer":
        request.getfixturevalue("browser")
    # Compiles only the small model. tests/trained/test_sampling.py compiles in every precision.
    steps = chain([compile_decoding], repeat(lambda model: model.next_logits))
    monkeypatch.setattr(sampling, "compile_decoding", lambda model: next(steps)(model))
    words = [f"suite={suite}", *WORDS[suite]]
    words += [f"data.path={speeches}"] if suite not in WITHOUT_RUN else []
    said = script("benchmark", *words).succeeded()
    made = {path.suffix: path for path in Path("outputs").glob(f"benchmark_{suite}_*/*")}
    assert {path.name for path in Path().iterdir()} - {"data"} == {"outputs"}
    assert {path.stem for path in made.values()} == {"benchmark"}
    assert made[".md"].read_text() == said.out
    assert imread(made[".png"]).std() > 0.05
    figures = json.loads(made[".json"].read_text())
    command = " ".join(shlex.split(figures["command"]))
    assert all(word.partition("=")[2] in command for word in words)
    assert figures["note"] in said.out
    for group in figures["groups"]:
        assert group["title"] in said.out
        for row in group["rows"]:
            assert f"\n| {row['side']} " in said.out
            for spread in (value for value in row.values() if isinstance(value, dict)):
                assert 0 <= spread["min"] <= spread["median"] <= spread["max"] < math.inf
        assert suite not in SIDES or [row["side"] for row in group["rows"]] == SIDES[suite]
    checks = {"attention": check_attention, "race": check_race}
    checks.get(suite, lambda *given: None)(figures["groups"], said.out)


def check_attention(groups: list[Any], said: str) -> None:
    """Every choice is measured, also with a number of heads that 2 does not divide."""
    even, odd = ([row["side"] for row in group["rows"]] for group in groups)
    assert {name.partition(",")[0] for name in even} == {*choices_of("model/attention")}
    assert "multi_head, explicit" in even
    assert odd == [name.replace("kv_heads=2", "kv_heads=1") for name in even]


def check_race(groups: list[Any], said: str) -> None:
    """The clock stops where the target is reached."""
    [runs] = (group["rows"] for group in groups)
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
    faster = [b["train_seconds"] / a["target_seconds"] for a, b in zip(first, second, strict=True)]
    assert "reaches 3.6 nats per token" in said
    assert f"; {min(faster):.2f} to {max(faster):.2f})" in said
