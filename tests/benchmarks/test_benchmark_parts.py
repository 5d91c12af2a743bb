"""The laws of what suites are made of: rounds, tables and charts, steps, batches, formulas."""

import sys
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
from rich.console import Console
from small_gpt import make_gpt
from torch.utils.flop_counter import FlopCounterMode

from headscope.benchmarks import data_side, roofline, show
from headscope.benchmarks.attention import turn
from headscope.benchmarks.data import write_tokens
from headscope.benchmarks.runner import Request, fresh_process, require_equal_losses, summarize
from headscope.benchmarks.scaling import at, exponent
from headscope.benchmarks.step import StepPlan, measure_isolated, measure_step
from headscope.benchmarks.transformers import gpt2_of
from headscope.nn import Rotary, attention

SIZES = {"vocab_size": 19, "block_size": 12, "embed_dim": 16, "layers": 2, "heads": 2}
CPU = torch.device("cpu")


def test_sides_alternate_and_ratios_are_of_one_round() -> None:
    order: list[str] = []
    times = {"a": iter([1.0, 2.0, 4.0]), "b": iter([2.0, 2.0, 2.0])}

    def side(name: str) -> dict[str, float]:
        order.append(name)
        return {"ms": next(times[name])}

    request = Request(None, None, [], {}, print, Console(quiet=True))
    measured = request.alternate({name: partial(side, name) for name in "ab"}, 3)
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
        {"side": "[a]", "count": 65536, "ms": spread, "rest": 1.0},
        {"side": "b", "count": 7, "ms": {**spread, "median": 4.0}, "rest": 2.0},
    ]
    made = show.table([*rows, {"side": "c"}], ["count", "ms"], "title")
    assert [[str(cell) for cell in column.cells] for column in made.columns] == [
        ["[a]", "b", "c"],
        ["65,536", "7", "-"],
        ["3", "4", "-"],
        ["2 to 9", "2 to 9", "-"],
        ["1.500", "1.500", "-"],
    ]
    bars = show.Bars("", "ms", rows, {"ms": "ms", "rest": "rest"}, "{ms[median]:.1f} ms")
    line = show.Line("line", [1, 10], [5, 6], "black", "o", ranges=[{"min": 4, "max": 7}] * 2)
    panels = [bars, replace(bars, nested=True), show.Lines("", "x", [line], 10)]
    figure = show.chart("title", panels, columns=2)
    stacked, nested, third, empty = figure.axes
    assert [bar.get_width() for bar in stacked.patches] == [3, 4, 1, 2]
    assert [bar.get_x() for bar in stacked.patches] == [0, 0, 3, 4]
    assert [bar.get_x() for bar in nested.patches] == [0] * 4
    assert [text.get_text() for text in stacked.texts] == ["3.0 ms", "4.0 ms"]
    assert third.lines[0].get_xydata().tolist() == [[1, 5], [10, 6]]
    assert not empty.get_visible()
    figure.draw_without_rendering()


def step_plan(**changed) -> StepPlan:
    run = training_config("optimizer=adamw", "trainer.batch_size=2", "trainer.precision=32-true")
    plan = StepPlan(run, vocab_size=30, rounds=1, device=CPU, threads=1, corpus=5000)
    return replace(plan.changed({"loss_chunk_tokens": None}, layers=1), **changed)


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    write_tokens(tmp_path / "tokens", 5000, vocab_size=30, seed=1)
    return tmp_path / "tokens"


def test_an_isolated_process_measures_the_same_step(tokens: Path) -> None:
    isolated, here = measure_isolated(step_plan()), measure_step(step_plan(), tokens)
    assert isolated["first_loss"] == here["first_loss"]
    assert isolated["parameters"] == here["parameters"]


def test_chunks_of_the_loss_do_not_change_it(tokens: Path) -> None:
    chunked = step_plan().changed({"loss_chunk_tokens": 7})
    first, second = (measure_step(plan, tokens)["first_loss"] for plan in (step_plan(), chunked))
    assert first == pytest.approx(second, rel=1e-5)


def test_the_state_of_two_optimizers_is_counted(tokens: Path) -> None:
    muon = training_config("optimizer=muon").optimizer
    plan = step_plan()
    figures = measure_step(replace(plan, run=replace(plan.run, optimizer=muon)), tokens)
    # Muon holds one number for each of the blocks' weights, AdamW two for each of the rest.
    assert figures["weights_mib"] < figures["optimizer_mib"] < 2 * figures["weights_mib"]


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_a_step_has_the_precision_of_the_trainer(tokens: Path, precision: str) -> None:
    plan = step_plan().changed({"precision": precision})
    full, less = measure_step(step_plan(), tokens), measure_step(plan, tokens)
    assert less["first_loss"] == pytest.approx(full["first_loss"], rel=0.01)
    assert less["first_loss"] != full["first_loss"]
    expected = full["weights_mib"] / (1 + (precision == "bf16-true"))
    assert less["weights_mib"] == pytest.approx(expected, abs=2e-3)


@pytest.mark.parametrize("axis", ["context", "width", "depth", "vocabulary", "corpus"])
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
            "corpus": plan.corpus,
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


@pytest.mark.parametrize("side", data_side.SIDES)
def test_both_sides_make_batches_of_what_is_in_the_file(tmp_path: Path, side: str) -> None:
    path = tmp_path / "tokens.bin"
    np.arange(20_000, dtype=np.uint16).tofile(path)  # each token is its own place
    seen = set()
    for inputs, targets in islice(data_side.SIDES[side](str(path), 16, 3, 1, 3), 50):
        assert inputs.shape == targets.shape == (3, 16)
        assert inputs.dtype == targets.dtype == torch.int64
        assert torch.equal(targets, inputs + 1)
        assert torch.equal(inputs, inputs[:, :1] + torch.arange(16))
        seen |= set(inputs[:, 0].tolist())
    assert len(seen) > 140  # they are spread over the file


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not say")
def test_memory_is_of_the_process_and_no_page_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "tokens.bin"
    write_tokens(path, 50_000_000, vocab_size=2**16, seed=0)
    with fresh_process(data_side.__name__) as process:
        what = ("headscope", str(path), 1000, 100, 1)
        before, after = (
            process.submit(data_side.turn, *what, 0, count).result()["memory_mib"]
            for count in (1, 450)  # nine tenths of the file
        )
    assert before > 20  # numpy and torch
    assert after - before < path.stat().st_size / 2**20 / 4
    unread = data_side.process_mib("RssAnon")
    held = np.fromfile(path, dtype=np.uint16)
    assert data_side.process_mib("RssAnon") - unread > 0.9 * held.nbytes / 2**20
    assert np.bincount(held, minlength=2**16).min() > 0
    assert not np.array_equal(held[:1000], held[10_000_000:][:1000])  # chunks differ


def test_the_time_of_forward_alone_is_that_of_a_pass_without_gradients() -> None:
    layer = attention.multi_head(embed_dim=8, heads=2, causal=False)
    x = torch.randn(1, 3, 8, requires_grad=True)
    modes: list[bool] = []
    layer.register_forward_hook(lambda *call: modes.append(torch.is_grad_enabled()))
    figures = turn(layer, x, torch.randn(1, 3, 8), explicit=False)
    assert min(figures.values()) > 0
    assert modes == [True, False]
    assert x.grad is None


def test_every_weight_of_a_product_counts_and_no_table() -> None:
    matrices = 2 * 12 * 16 * 16 + 19 * 16  # of two layers, and the head
    biased = {"bias": True, "qkv_bias": True}
    for other in ({}, {"tied_head": False}, biased, {"ngrams": 3}):
        assert roofline.weights_in_products(make_gpt(**SIZES, **other)) == matrices
    cache = 2 * 2 * 16 * 5  # keys and values of two layers and five tokens
    sizes = {"fp32": 4 * (matrices + cache), "bf16": 2 * (matrices + cache)}
    for kind, size in {**sizes, "int8": matrices + 4 * cache}.items():
        assert roofline.bytes_per_token(make_gpt(**SIZES), kind, 5) == size


def test_a_step_takes_what_pytorch_counts() -> None:
    model = make_gpt(**SIZES)
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(3, 12, dtype=torch.long)).sum().backward()
    counted = counter.get_total_flops()
    if not any("attention" in str(name) for name in counter.get_flop_counts()["Global"]):
        # QK and its sum, forward once and back twice: on a CPU they are not counted.
        counted += 3 * 2 * 2 * 2 * 12 * 12 * 16 * 3
    assert counted == 3 * 12 * roofline.training_flops(model)


def test_rates_are_those_of_a_machine() -> None:
    assert roofline.matrix_rate(CPU) > 1e8
    assert roofline.read_bandwidth(CPU, megabytes=8) > 1e8


@pytest.mark.parametrize("bias", [True, False])
def test_the_model_of_transformers_gives_our_logits(bias: bool) -> None:
    torch.manual_seed(0)
    model = make_gpt(**SIZES, bias=bias, qkv_bias=bias).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    tokens = torch.randint(19, (2, 12))
    torch.testing.assert_close(gpt2_of(model)(tokens).logits, model(tokens))


@pytest.mark.parametrize(
    "other",
    [{"position": Rotary}, {"tied_head": False}, {"ngrams": 2}, {"logit_cap": 15.0}],
)
def test_a_model_that_is_no_gpt_2_is_not_compared(other: dict) -> None:
    with pytest.raises(ValueError, match=r"suite\.peers=false"):
        gpt2_of(make_gpt(**SIZES, **other))
