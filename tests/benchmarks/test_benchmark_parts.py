"""The laws of what suites are made of: rounds, tables and charts, FLOPs, and logs of nanoGPT."""

from functools import partial

import numpy as np
import pytest
import torch
from small_gpt import make_gpt
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.race import training_seconds, write_data
from benchmarks.runner import alternate, summarize
from benchmarks.table import bar_chart, table
from benchmarks.training import matrix_rate, training_flops
from headscope.data.store import TokenStore
from headscope.data.tokenizer import byte
from headscope.errors import UserError


def test_sides_alternate_and_ratios_are_of_one_round():
    order: list[str] = []
    times = {"a": iter([1.0, 2.0, 4.0]), "b": iter([2.0, 2.0, 2.0])}

    def side(name: str) -> dict[str, float]:
        order.append(name)
        return {"ms": next(times[name])}

    measured = alternate({name: partial(side, name) for name in "ab"}, 3)
    assert "".join(order) == "abbaab"
    a, b = summarize(measured, ratio_of="ms", reference="b")
    assert a["ms"] == {"median": 2, "min": 1, "max": 4, "ratio": 1}
    assert b["ms"]["ratio"] == 1


def test_a_table_and_a_chart_hold_the_figures():
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
    for panel in bar_chart("title", {"a": rows, "b": rows}, "x", "time_ms").axes:
        assert [bar.get_width() for bar in panel.patches] == [3, 4096]
        assert [text.get_text() for text in panel.texts] == ["3, 1.50x", "4,096, 1.50x"]


def test_a_step_takes_the_flops_that_pytorch_counts_and_a_rate_is_measured_unnoticed():
    model = make_gpt(vocab_size=19, block_size=12, embed_dim=16, layers=2, heads=2)
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(3, 12, dtype=torch.long)).sum().backward()
    counted = counter.get_total_flops()
    if not any("attention" in str(name) for name in counter.get_flop_counts()["Global"]):
        # QK and its sum, forward once and back twice: on a CPU they are not counted.
        counted += 3 * 2 * 2 * 2 * 12 * 12 * 16 * 3
    assert counted == 3 * 12 * training_flops(model)
    before = torch.get_rng_state()
    assert 1e8 < matrix_rate(torch.device("cpu"), size=256, rounds=2) < 1e15
    assert torch.equal(torch.get_rng_state(), before)


def test_the_training_time_of_nanogpt_is_without_evaluations(tmp_path):
    """nanoGPT evaluates before its first and after its last iteration."""
    times = [510, 10, 12, 10, 300]
    log = "\n".join(f"iter {n}: loss 4.1, time {ms:.2f}ms, mfu -1%" for n, ms in enumerate(times))
    assert training_seconds(log, 4) == pytest.approx(4 * (10 + 12 + 10) / 3 / 1e3)
    for broken in ("", "iter 0: loss nan", log):
        with pytest.raises(UserError, match=r"suite\.nanogpt: the log"):
            training_seconds(broken, 6)
    tokens = np.arange(9, dtype=np.uint32)
    with pytest.raises(UserError, match="65,536"):
        write_data(TokenStore(tmp_path, byte([]), tokens, tokens), tmp_path / "data")
