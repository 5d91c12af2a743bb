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

from benchmarks import nanogpt
from benchmarks.runner import alternate, process_mib, summarize
from benchmarks.table import bar_chart, line_chart, table
from benchmarks.transformers import gpt2_of
from headscope.checkpoint import build_model
from headscope.data.store import TokenStore
from headscope.data.tokenizer import byte
from headscope.errors import UserError

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


def test_a_table_and_a_chart_hold_the_figures() -> None:
    spread = {"median": 3.0, "min": 2.0, "max": 9.0, "ratio": 1.5}
    rows = [
        {"side": "[a]", "count": 65536, "time_ms": spread, "text": "x", "marks": []},
        {"side": "headscope", "time_ms": {**spread, "median": 4096.0}, "text": True},
    ]
    assert table(rows).splitlines() == [
        "|           |  count | time ms | time ms: range | time ms: ratio | text |",
        "| --------- | -----: | ------: | -------------: | -------------: | ---: |",
        "| [a]       | 65,536 |       3 |         2 to 9 |          1.500 |    x |",
        "| headscope |      - |   4,096 |         2 to 9 |          1.500 |  yes |",
    ]
    assert table(rows, ["text"]).splitlines()[0] == "|           | text |"
    figure = bar_chart("title", {"a": rows, "b": rows}, "x", ["time_ms", "count"])
    [legend], [upper, lower] = figure.legends, figure.axes
    assert [text.get_text() for text in legend.get_texts()] == ["time ms", "count"]
    assert [bar.get_width() for bar in upper.patches] == [3, 4096, 65536, 0]
    texts = ["3, 1.50x", "4,096, 1.50x", "65,536", "-"]
    assert [text.get_text() for text in upper.texts] == texts
    figure.draw_without_rendering()
    assert upper.get_position().y0 > lower.get_position().y1
    marks = [{"seconds": 1, "loss": 5}, {"seconds": 10, "loss": 6}]
    runs = [{"side": side, "marks": marks} for side in ("ours", "ours", "theirs")]
    [panel] = line_chart("title", runs, "y", 5.5).axes
    assert panel.lines[0].get_xydata().tolist() == [[1, 5], [10, 6]]
    assert [line.get_linestyle() for line in panel.lines] == ["-", "-", "-", ":"]
    assert len({line.get_color() for line in panel.lines}) == 3
    names = ["ours", "theirs", "target: 5.5"]
    assert [text.get_text() for text in panel.get_legend().get_texts()] == names


def test_memory_is_that_of_this_process() -> None:
    expected = psutil.Process().memory_info().rss / 2**20
    assert process_mib("VmRSS") == pytest.approx(expected, abs=10, nan_ok=sys.platform != "linux")


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


def test_the_training_time_of_nanogpt_is_without_evaluations() -> None:
    """nanoGPT evaluates before its first and after its last iteration."""
    times = [510, 10, 12, 10, 300]
    log = "\n".join(f"iter {n}: loss 4.1, time {ms:.2f}ms, mfu -1%" for n, ms in enumerate(times))
    assert nanogpt.training_seconds(log, 4) == pytest.approx(4 * (10 + 12 + 10) / 3 / 1e3)
    for broken in ("", "iter 0: loss nan", log):
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
