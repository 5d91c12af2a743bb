"""The table of scripts/gpu_check.sh, on a machine without a GPU."""

import json
from pathlib import Path

import pytest
from running import SMALL, summary

pytestmark = pytest.mark.slow


def test_the_table_has_a_row_for_each_run_and_each_side_of_a_benchmark(script, speeches):
    short = ["trainer.max_steps=2", "trainer.val_every_steps=2", "trainer.precision=bf16-mixed"]
    script("train", *SMALL, *short, f"data.path={speeches}", "hydra.run.dir=out/ours").succeeded()
    rows = [{"side": "theirs", "tokens_per_second": 1234, "mfu": 0.5, "peak_mib": {"median": 7.0}}]
    Path("out/step").mkdir()
    Path("out/step/benchmark.json").write_text(
        json.dumps({"groups": [{"title": "a step", "rows": rows}]})
    )
    said = script("gpu_table", "out").succeeded()
    _, run, step = (line.split() for line in said.out.splitlines())
    assert run[:2] == ["ours", f"{summary('out/ours')['val_loss']:.4f}"]
    assert run[5:] == ["-", "flash_attention_for_cpu"]
    assert step == ["step:", "theirs", "-", "-", "1,234", "50.0%", "7", "-"]
