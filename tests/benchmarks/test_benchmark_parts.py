"""The laws of what suites are made of: rounds, tables and charts, steps, batches, formulas."""

import pickle
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from composing import training_config
from hypothesis import given
from hypothesis import strategies as st

from headscope.benchmarks import attention, nanogpt, show
from headscope.benchmarks.data import nanogpt_batches, turn, write_tokens
from headscope.benchmarks.runner import (
    alternate,
    in_fresh_process,
    process_mib,
    require_equal_losses,
    summarize,
)
from headscope.benchmarks.scaling import at, exponent
from headscope.benchmarks.step import Step, StepPlan, measure_isolated, measure_step
from headscope.benchmarks.transformers import gpt2_of
from headscope.checkpoint import build_model
from headscope.data.batches import Batch, TrainingBatches
from headscope.data.store import TokenStore
from headscope.data.tokenizer import byte
from headscope.errors import UserError
from headscope.nn import MultiHeadAttention

SIZES = {"vocab_size": 19, "block_size": 12, "embed_dim": 16, "layers": 2, "heads": 2}
CPU = torch.device("cpu")


def test_sides_alternate_and_ratios_are_of_one_round() -> None:
    order: list[str] = []
    times = {"a": iter([1.0, 2.0, 4.0]), "b": iter([2.0, 2.0, 2.0])}

    def side(name: str) -> dict[str, float]:
        order.append(name)
        return {"ms": next(times[name])}

    measured = alternate({name: partial(side, name) for name in "ab"}, 3)
    assert "".join(order) == "abbaab"
    a, b = summarize(measured, reference="b")
    ratio = {"median": 1, "min": 0.5, "max": 2}
    assert a["ms"] == {"median": 2, "min": 1, "max": 4, "ratio": ratio}
    assert b["ms"]["ratio"] == {"median": 1, "min": 1, "max": 1}


def test_losses_that_differ_are_found_out() -> None:
    require_equal_losses({"ours": 2.0, "other": 2.0001}, "ours", tolerance=1e-3)
    with pytest.raises(RuntimeError, match="other began at loss"):
        require_equal_losses({"ours": 2.0, "other": 2.01}, "ours", tolerance=1e-3)


def test_a_table_and_a_chart_hold_the_figures() -> None:
    spread = {"median": 3.0, "min": 2.0, "max": 9.0, "ratio": {"median": 1.5}}
    rows = [
        {"side": "[a]", "count": 65536, "ms": spread, "a name": "x"},
        {"side": "headscope", "count": 7, "ms": {**spread, "median": 4096.0}},
    ]
    made = show.table([*rows, {"side": "c"}], {"count": "number", "ms": "time", "a name": "text"})
    assert made.splitlines() == [
        "|           | number |  time | time: range | time: ratio | text |",
        "| --------- | -----: | ----: | ----------: | ----------: | ---: |",
        "| [a]       | 65,536 |     3 |      2 to 9 |       1.500 |    x |",
        "| headscope |      7 | 4,096 |      2 to 9 |       1.500 |    - |",
        "| c         |      - |     - |           - |           - |    - |",
    ]
    line = show.Line("line", [1, 10], [5, 6], "black")
    lines = show.Lines("", "x", [line, show.Line("reference", [1, 10], [5, 6])], 10)
    figure = show.chart("title", [show.Bars("", "ms", rows, "ms"), *[lines] * 3])
    bars, logarithmic, below, _ = figure.axes
    assert [bar.get_width() for bar in bars.patches] == [3, 4096]
    assert [text.get_text() for text in bars.texts] == ["3, 1.50x", "4,096, 1.50x"]
    assert (bars.get_xscale(), logarithmic.get_xscale()) == ("linear", "log")
    assert logarithmic.lines[0].get_xydata().tolist() == [[1, 5], [10, 6]]
    assert [line.get_linestyle() for line in logarithmic.lines] == ["-", ":"]
    figure.draw_without_rendering()
    left, right, next_row = (axes.get_position() for axes in (bars, logarithmic, below))
    assert left.x1 < right.x0
    assert left.y0 > next_row.y1


def step_plan(**changed) -> StepPlan:
    run = training_config("optimizer=adamw", "trainer.batch_size=2", "trainer.precision=32-true")
    plan = StepPlan(run, vocab_size=30, rounds=1, device=CPU)
    return replace(plan.changed({"loss_chunk_tokens": None}, layers=1), **changed)


@pytest.mark.slow
def test_an_isolated_process_measures_the_same_step() -> None:
    isolated, here = measure_isolated(step_plan()), measure_step(step_plan())
    assert isolated["first_loss"] == here["first_loss"]
    assert isolated["parameters"] == here["parameters"]


def test_chunks_of_the_loss_do_not_change_it() -> None:
    chunked = step_plan().changed({"loss_chunk_tokens": 7})
    first, second = (measure_step(plan)["first_loss"] for plan in (step_plan(), chunked))
    assert first == pytest.approx(second, rel=1e-5)


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_a_step_has_the_precision_of_the_trainer(precision: str) -> None:
    plan = step_plan().changed({"precision": precision})
    full, less = measure_step(step_plan()), measure_step(plan)
    assert less["first_loss"] == pytest.approx(full["first_loss"], rel=0.01)
    assert less["first_loss"] != full["first_loss"]
    dtype = torch.bfloat16 if precision == "bf16-true" else torch.float32
    assert {weight.dtype for weight in Step(plan).model.parameters()} == {dtype}


@pytest.mark.parametrize("axis", ["context", "width", "depth", "vocabulary"])
def test_one_size_grows_and_the_others_stay(axis: str) -> None:
    start = step_plan().changed({"batch_size": 4})

    def sizes(value: int) -> dict[str, int]:
        plan = at(start, axis, value)
        model = plan.run.model
        return {
            "context": model.block_size,
            "width": model.embed_dim,
            "depth": model.layers,
            "vocabulary": plan.vocab_size,
            "tokens": plan.run.trainer.batch_size * model.block_size,
            "head_dim": model.embed_dim // model.heads,
        }

    before, after = sizes(128), sizes(256)
    assert (before.pop(axis), after.pop(axis)) == (128, 256)
    assert before == after


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


def batches_of(name: str, path: Path, *, length: int, batch_size: int) -> Iterator[Batch]:
    if name == "nanoGPT":
        return nanogpt_batches(path, length, batch_size, 1)
    tokens = np.memmap(path, dtype=np.uint16, mode="r")
    return iter(TrainingBatches(tokens, block_size=length, batch_size=batch_size, seed=1))


@pytest.mark.parametrize("side", ["nanoGPT", "headscope"])
def test_both_sides_make_batches_from_the_file(tmp_path: Path, side: str) -> None:
    path = tmp_path / "tokens.bin"
    np.arange(20_000, dtype=np.uint16).tofile(path)  # each token is its own position
    seen = set()
    for inputs, targets in islice(batches_of(side, path, length=16, batch_size=3), 50):
        assert inputs.shape == targets.shape == (3, 16)
        assert inputs.dtype == targets.dtype == torch.int64
        assert torch.equal(targets, inputs + 1)
        assert torch.equal(inputs, inputs[:, :1] + torch.arange(16))
        seen |= set(inputs[:, 0].tolist())
    assert len(seen) > 140  # they are spread over the file


def growth_mib(path: Path) -> float:
    """In a process of its own: the growth of memory while nine tenths of a file are read."""
    return turn(batches_of("headscope", path, length=1000, batch_size=100), 450)["memory_mib"]


def growth_of_a_copy(path: Path) -> float:
    """Returns how much the memory of this process grows, in MiB, when it reads a whole file."""
    before = process_mib("RssAnon")
    assert before > 20  # numpy and torch
    held = np.fromfile(path, dtype=np.uint16)
    growth = process_mib("RssAnon") - before
    assert len(held)  # it is in memory until here
    return growth


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not report it")
def test_memory_is_that_of_the_process_without_file_pages(tmp_path: Path) -> None:
    path = tmp_path / "tokens.bin"
    write_tokens(path, 50_000_000, seed=0)
    assert in_fresh_process(growth_mib, path) < path.stat().st_size / 2**20 / 4
    assert in_fresh_process(growth_of_a_copy, path) > 0.9 * path.stat().st_size / 2**20
    held = np.fromfile(path, dtype=np.uint16)
    assert np.bincount(held, minlength=2**16).min() > 0
    assert not np.array_equal(held[:1000], held[10_000_000:][:1000])  # chunks differ


def test_forward_only_is_timed_without_gradients() -> None:
    layer = MultiHeadAttention(embed_dim=8, heads=2, causal=False)
    x = torch.randn(1, 3, 8, requires_grad=True)
    modes: list[bool] = []
    layer.register_forward_hook(lambda *call: modes.append(torch.is_grad_enabled()))
    figures = attention.turn(layer, x, torch.randn(1, 3, 8), explicit=False)
    assert min(figures.values()) > 0
    assert modes == [True, False]
    assert x.grad is None


@pytest.mark.parametrize("bias", [True, False])
def test_the_model_of_transformers_gives_our_logits(bias: bool) -> None:
    torch.manual_seed(0)
    sizes = [f"model.{key}={value}" for key, value in SIZES.items() if key != "vocab_size"]
    flags = [f"model.bias={bias}", f"model.qkv_bias={bias}"]
    config = training_config("model=gpt2", *sizes, *flags).model
    model = build_model(config, vocab_size=SIZES["vocab_size"]).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    tokens = torch.randint(19, (2, 12))
    torch.testing.assert_close(gpt2_of(model, config)(tokens).logits, model(tokens))


def log_of(steps: int, evaluated: dict[int, int]) -> str:
    """A log of nanoGPT's train.py: 10 ms a step, and `evaluated` ms of evaluation before some."""
    lines = ["number of parameters: 0.80M"]
    for number in range(steps):
        if number in evaluated:
            lines.append(f"step {number}: train loss 4.1, val loss 4.2")
        milliseconds = 10 + evaluated.get(number, 0)
        lines.append(f"iter {number}: loss 4.1676, time {milliseconds:.2f}ms, mfu -100.00%")
    return "\n".join(lines)


def test_the_training_time_of_nanogpt_is_without_evaluations() -> None:
    log = log_of(7, {0: 500, 3: 400, 6: 300})
    assert nanogpt.training_seconds(log, 6) == pytest.approx(0.06)
    assert nanogpt.training_seconds(log_of(7, {}), 7) == pytest.approx(0.07)
    for broken in ("", "iter 0: loss nan", log_of(5, {})):
        with pytest.raises(UserError, match=r"suite\.nanogpt: the log"):
            nanogpt.training_seconds(broken, 6)


def test_nanogpt_gets_the_tokens_of_our_store(tmp_path: Path) -> None:
    train, validation = np.arange(9, dtype=np.uint16), np.arange(5, dtype=np.uint16)
    tokenizer = byte([])
    store = TokenStore(tmp_path, tokenizer, train, validation)
    nanogpt.write_data(store, tmp_path / "data")
    for name, tokens in (("train", train), ("val", validation)):
        assert np.fromfile(tmp_path / "data" / f"{name}.bin", np.uint16).tolist() == tokens.tolist()
    meta = pickle.loads((tmp_path / "data" / "meta.pkl").read_bytes())
    assert meta == {"vocab_size": tokenizer.vocab_size}
    wide = replace(store, train=train.astype(np.uint32))
    with pytest.raises(UserError, match="65,536"):
        nanogpt.write_data(wide, tmp_path / "other")
