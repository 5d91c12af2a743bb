"""The laws of suite=sampling: all ways write the same, and each is counted as what it is."""

import json
from pathlib import Path

import pytest
import torch
from running import Script
from small_gpt import make_gpt

from headscope.benchmarks import sampling
from headscope.benchmarks.sampling import Sampled, bytes_per_token

SIZES = {"vocab_size": 19, "block_size": 12, "embed_dim": 16, "layers": 2, "heads": 2}
WORDS = [
    "suite=sampling",
    "suite.rounds=2",
    *(f"suite.{size}.{key}={value}" for size in ("small", "large") for key, value in SIZES.items()),
    *("suite.small.tokens=30", "suite.large.prompt=3", "suite.large.tokens=8"),
]


def test_every_way_is_timed(script: Script) -> None:
    said = script("benchmark", *WORDS, "output=made.json")
    assert said.code == 0, said.err
    assert {path.name for path in Path().iterdir()} == {"made.json", "made.png"}
    figures = json.loads(Path("made.json").read_text())
    ways = {size: [row["way"] for row in figures[size]["ways"]] for size in ("small", "large")}
    assert ways == {
        "small": ["headscope, no cache", "headscope", "headscope, compiled"],
        "large": [
            *("transformers fp32", "transformers bf16"),
            *("headscope fp32", "headscope bf16", "headscope int8"),
            *("headscope, compiled, fp32", "headscope, compiled, bf16"),
        ],
    }
    for size in ("small", "large"):
        first, *_ = figures[size]["ways"]
        assert first["times_faster"] == {"median": 1, "min": 1, "max": 1}
        for row in figures[size]["ways"]:
            speed = row["tokens_per_second"]
            assert 0 < speed["min"] <= speed["median"] <= speed["max"]
            assert row["way"] in said.out
    assert figures["large"]["gigabytes_per_second"] > 0


def test_ways_that_write_something_else_are_found_out(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        sampling, "compile_reading", lambda model: lambda *given: -model.next_logits(*given)
    )
    said = script("benchmark", *WORDS)
    assert said.code == 1
    assert "compiled writes another text" in said.err


def test_what_is_read_for_a_token() -> None:
    model = make_gpt(**SIZES, bias=True, qkv_bias=True)
    matrices = 2 * 12 * 16 * 16 + 19 * 16  # of two layers, and the head
    cache = 2 * 2 * 16 * 5  # keys and values of two layers and five tokens
    assert bytes_per_token(model, "fp32", length=5) == 4 * (matrices + cache)
    assert bytes_per_token(model, "bf16", length=5) == 2 * (matrices + cache)
    assert bytes_per_token(model, "int8", length=5) == matrices + 4 * cache


def test_a_text_longer_than_what_is_compared_with_can_read_is_refused(script: Script) -> None:
    said = script("benchmark", *WORDS, "suite.large.tokens=10")
    assert said.code == 1
    assert "suite.large.tokens=10" in said.err
    assert said.err.count("\n") == 1


def test_a_case_of_no_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="tokens=0"):
        Sampled(**SIZES, prompt=1, tokens=0)


def test_logits_that_differ_are_found_out() -> None:
    ours = torch.tensor([1.0, 2.0])
    sampling.require_close(ours + 1e-5, ours)
    with pytest.raises(RuntimeError, match="apart"):
        sampling.require_close(ours + 0.1, ours)
