"""The laws of what suites are made of: rounds, tables and charts, batches and logs of nanoGPT."""

import pickle
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from composing import training_config

from benchmarks import attention, nanogpt
from benchmarks.runner import alternate, process_mib, require_equal_losses, summarize
from benchmarks.table import Line, bar_chart, line_chart, table
from benchmarks.transformers import gpt2_of
from headscope.checkpoint import build_model
from headscope.data.store import TokenStore
from headscope.data.tokenizer import byte
from headscope.errors import UserError
from headscope.nn import MultiHeadAttention

SIZES = {"vocab_size": 19, "block_size": 12, "embed_dim": 16, "layers": 2, "heads": 2}


def test_sides_alternate_and_ratios_are_of_one_round() -> None:
    order: list[str] = []
    times = {"a": iter([1.0, 2.0, 4.0]), "b": iter([2.0, 2.0, 2.0])}

    def side(name: str) -> dict[str, float]:
        order.append(name)
        return {"ms": next(times[name]), "mib": 5.0}

    measured = alternate({name: partial(side, name) for name in "ab"}, 3)
    assert "".join(order) == "abbaab"
    a, b = summarize(measured, ratio_of="ms", reference="b")
    assert a["ms"] == {"median": 2, "min": 1, "max": 4, "ratio": 1}
    assert b["ms"]["ratio"] == 1
    assert a["mib"] == {"median": 5, "min": 5, "max": 5}


def test_losses_that_differ_are_found_out() -> None:
    require_equal_losses({"ours": 2.0, "other": 2.0001}, "ours")
    with pytest.raises(RuntimeError, match="other began at loss"):
        require_equal_losses({"ours": 2.0, "other": 2.01}, "ours")


def test_a_table_and_a_chart_hold_the_figures() -> None:
    spread = {"median": 3.0, "min": 2.0, "max": 9.0, "ratio": 1.5}
    rows = [
        {"side": "[a]", "count": 65536, "ms": spread, "a name": "x"},
        {"side": "headscope", "count": 7, "ms": {**spread, "median": 4096.0}, "a name": True},
        {"side": "c", "a name": float("nan")},
    ]
    made = table(rows, {"count": "number", "ms": "time", "a name": "text"})
    assert made.splitlines() == [
        "|           | number |  time | time: range | time: ratio | text |",
        "| --------- | -----: | ----: | ----------: | ----------: | ---: |",
        "| [a]       | 65,536 |     3 |      2 to 9 |       1.500 |    x |",
        "| headscope |      7 | 4,096 |      2 to 9 |       1.500 |  yes |",
        "| c         |      - |     - |           - |           - |    - |",
    ]
    [panel] = bar_chart("title", {"group": rows}, "ms", {"ms": "time"}).axes
    assert [bar.get_width() for bar in panel.patches] == [3, 4096, 0]
    assert [text.get_text() for text in panel.texts] == ["3, 1.50x", "4,096, 1.50x", "-"]
    figure = bar_chart("title", {"a": rows, "b": rows}, "x", {"ms": "time", "count": "number"})
    [legend], [upper, lower] = figure.legends, figure.axes
    assert [text.get_text() for text in legend.get_texts()] == ["time", "number"]
    assert len(upper.patches) == 6
    figure.draw_without_rendering()
    assert upper.get_position().y0 > lower.get_position().y1
    lines = [Line("run", [1, 10], [5, 6], "black")] * 2 + [Line("target", [1, 10], [5, 6])]
    [panel] = line_chart("title", lines, "x", "y").axes
    assert panel.lines[0].get_xydata().tolist() == [[1, 5], [10, 6]]
    assert [line.get_linestyle() for line in panel.lines] == ["-", "-", ":"]
    assert [text.get_text() for text in panel.get_legend().get_texts()] == ["run", "target"]


def test_memory_is_that_of_this_process() -> None:
    expected = psutil.Process().memory_info().rss / 2**20
    assert process_mib("VmRSS") == pytest.approx(expected, abs=10, nan_ok=sys.platform != "linux")


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
