"""The laws of what suites are made of: rounds, tables and charts, batches and logs of nanoGPT."""

from functools import partial

import numpy as np
import pytest

from benchmarks import nanogpt
from benchmarks.runner import alternate, summarize
from benchmarks.table import bar_chart, line_chart, table
from headscope.data.store import TokenStore
from headscope.data.tokenizer import byte
from headscope.errors import UserError


def test_sides_alternate_and_ratios_are_of_one_round():
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
    assert table(rows, ["text"]).splitlines()[0] == "|           | text |"
    upper, lower = bar_chart("title", {"a": rows, "b": rows}, "x", ["time_ms", "count"]).axes
    assert [bar.get_width() for bar in upper.patches] == [3, 4096, 65536, 0]
    texts = ["3, 1.50x", "4,096, 1.50x", "65,536", "-"]
    assert [text.get_text() for text in lower.texts] == texts
    marks = [{"seconds": 1, "loss": 5}, {"seconds": 10, "loss": 6}]
    runs = [{"side": side, "marks": marks} for side in ("ours", "ours", "theirs")]
    [panel] = line_chart("title", runs, "y", 5.5).axes
    assert panel.lines[0].get_xydata().tolist() == [[1, 5], [10, 6]]
    names = ["ours", "theirs", "target: 5.5"]
    assert [text.get_text() for text in panel.get_legend().get_texts()] == names


def test_the_training_time_of_nanogpt_is_without_evaluations():
    """nanoGPT evaluates before its first and after its last iteration."""
    times = [510, 10, 12, 10, 300]
    log = "\n".join(f"iter {n}: loss 4.1, time {ms:.2f}ms, mfu -1%" for n, ms in enumerate(times))
    assert nanogpt.training_seconds(log, 4) == pytest.approx(4 * (10 + 12 + 10) / 3 / 1e3)
    for broken in ("", "iter 0: loss nan", log):
        with pytest.raises(UserError, match=r"suite\.nanogpt: the log"):
            nanogpt.training_seconds(broken, 6)


def test_nanogpt_gets_only_tokens_that_it_can_store(tmp_path):
    tokens = np.arange(9, dtype=np.uint32)
    with pytest.raises(UserError, match="65,536"):
        nanogpt.write_data(TokenStore(tmp_path, byte([]), tokens, tokens), tmp_path / "data")
