"""The laws of suite=scaling: one size grows at a time, and the exponent is that of the growth."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.image import imread
from running import Script
from test_memory_benchmark import plan

from headscope.benchmarks.scaling import at, exponent
from headscope.checkpoint import build_model

SIZES = {
    "context": ("contexts", [16, 32]),
    "width": ("widths", [16, 32]),
    "depth": ("layers", [1, 2, 4]),
    "vocabulary": ("vocabularies", [64, 4096]),
    "corpus": ("corpora", [1000, 3000]),
}
WORDS = [
    *("suite=scaling", "suite.rounds=1", "suite.tokens_per_step=64", "suite.vocab_size=64"),
    *(f"suite.{key}={values}".replace(" ", "") for key, values in SIZES.values()),
    *("model.block_size=16", "model.embed_dim=16", "model.layers=1", "model.heads=2"),
    "trainer.accelerator=cpu",
]


def test_every_axis_is_measured_and_drawn(script: Script) -> None:
    said = script("benchmark", *WORDS)
    assert said.code == 0, said.err
    figures = json.loads(Path("benchmark_scaling.json").read_text())
    assert {path.name for path in Path().iterdir()} == {
        "benchmark_scaling.json",
        "benchmark_scaling.png",
    }
    height, width, _ = imread("benchmark_scaling.png").shape
    assert 500 < height < width < 2000
    assert imread("benchmark_scaling.png").std() > 0.05
    assert figures["tokens_per_step"] == 64
    assert list(figures["axes"]) == list(SIZES)
    for axis, (_, sizes) in SIZES.items():
        found = figures["axes"][axis]
        assert found["sizes"] == sizes
        assert len(found["milliseconds"]) == len(sizes)
        for times in found["milliseconds"]:
            assert 0 < times["min"] <= times["median"] <= times["max"]
        assert f"\n{axis} " in said.out
        assert f"{found['time_exponent']:z.2f}" in said.out
        assert ("peak_mib" in found) == (axis != "corpus")
    logits = 4 * 64 * 4096 / 2**20
    small, large = figures["axes"]["vocabulary"]["peak_mib"]
    assert large > small + 2 * logits
    assert figures["axes"]["vocabulary"]["memory_exponent"] > 0.1
    # What stands on every axis is measured once.
    first = [figures["axes"][axis]["milliseconds"][0] for axis in list(SIZES)[:4]]
    assert first == [first[0]] * 4


@pytest.mark.parametrize("axis", ["context", "width", "depth", "vocabulary"])
def test_one_size_grows_and_the_others_stay(axis: str) -> None:
    start = plan(batch_size=4)

    def sizes(value: int) -> dict[str, int]:
        grown = at(start, axis, value)
        model = build_model(grown.model, vocab_size=grown.vocab_size)
        return {
            "context": model.block_size,
            "width": model.embedding.embedding_dim,
            "depth": len(model.blocks),
            "vocabulary": model.head.out_features,
            "tokens": grown.batch_size * model.block_size,
            "head_dim": model.attentions[0].head_dim,
        }

    before, after = sizes(128), sizes(256)
    assert before.pop(axis) == 128
    assert after.pop(axis) == 256
    assert before == after
    assert after["tokens"] == 4 * 64


@given(
    st.floats(-2, 3), st.floats(0.1, 100), st.lists(st.integers(1, 10**6), min_size=2, unique=True)
)
def test_the_exponent_is_that_of_a_power(power: float, factor: float, sizes: list[int]) -> None:
    sizes.sort()
    values = [factor * size**power for size in sizes]
    assert exponent(sizes, values) == pytest.approx(power, abs=1e-3)


def test_the_exponent_is_of_the_upper_half() -> None:
    assert exponent([1, 2, 4, 8], [7, 7, 4, 16]) == 2
    assert exponent([1, 2, 4, 8, 16], [9, 9, 4, 8, 16]) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["suite.contexts=[16,24]"], ["suite.tokens_per_step=64", "24"]),
        (["suite.tokens_per_step=40"], ["suite.tokens_per_step=40", "16"]),
        (["suite.widths=[16]"], ["suite.widths=[16]", "two"]),
        (["suite.layers=[2,1]"], ["suite.layers=[2, 1]", "rising"]),
        (["suite.vocabularies=[0,4]"], ["suite.vocabularies=[0, 4]"]),
        (["suite.widths=[16,17]"], ["17"]),
        (["suite.corpora=[10,1000]"], ["10 training tokens"]),
        (["experiment=heads"], ["experiment=heads", "model.*"]),
    ],
    ids=" ".join,
)
def test_a_mistake_is_told_in_one_line(
    script: Script, arguments: list[str], words: list[str]
) -> None:
    said = script("benchmark", *WORDS, *arguments)
    assert (said.code, said.out) == (1, "")
    told = said.err.splitlines()[-1]
    assert told.startswith("Error: ")
    for word in words:
        assert word in told
    assert not list(Path().iterdir())
