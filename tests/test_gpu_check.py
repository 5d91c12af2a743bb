"""The laws of scripts/gpu_check.sh, on a machine without a GPU."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from running import ROOT, SMALL, summary

pytestmark = pytest.mark.slow

PYTHON = """#!/usr/bin/env bash
echo "$@" >> "$CALLS"
case "$*" in *out/nanogpt_gpu*|*" transformers"|*" pytest "*) exit 1 ;; esac
"""
"""Stands for Python: records its calls. One run fails; transformers and pytest are missing."""


def test_it_goes_on_after_a_part_that_failed_and_ends_with_the_table(tmp_path):
    fake, calls = tmp_path / "python", tmp_path / "calls"
    fake.write_text(PYTHON)
    fake.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "CALLS": str(calls)}

    def gpu_check(*words: str) -> subprocess.CompletedProcess[str]:
        calls.write_text("")
        command = ["bash", str(ROOT / "scripts" / "gpu_check.sh"), f"out={tmp_path}/out", *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)

    done = gpu_check("runs", "steps", "seed=7", "gpt2.a=1")
    assert done.returncode == 1
    assert done.stderr == "failed: runs\n"
    run, failed, step, *_, table = re.findall(r"^scripts/.*", calls.read_text(), re.MULTILINE)
    assert run == f"scripts/train.py hydra.run.dir={tmp_path}/out/default seed=7"
    assert "experiment=nanogpt_gpu" in failed
    assert " a=1 " in step
    assert step.endswith("seed=7")
    assert table == f"scripts/gpu_table.py {tmp_path}/out"
    done = gpu_check("runs", "rums")
    assert (done.returncode, calls.read_text()) == (1, "")
    assert "rums is not one of: tests runs" in done.stderr


def test_the_table_has_a_row_for_each_run_and_each_side_of_a_benchmark(script, speeches):
    short = ["trainer.max_steps=2", "trainer.val_every_steps=2", "trainer.precision=bf16-mixed"]
    said = script("train", *SMALL, *short, f"data.path={speeches}", "hydra.run.dir=out/ours")
    assert said.code == 0, said.err
    rows = [{"side": "theirs", "tokens_per_second": 1234, "mfu": 0.5, "peak_mib": {"median": 7.0}}]
    Path("out/step").mkdir()
    Path("out/step/benchmark.json").write_text(
        json.dumps({"groups": [{"title": "a step", "rows": rows}]})
    )
    said = script("gpu_table", "out")
    assert said.code == 0, said.err
    _, run, step = (line.split() for line in said.out.splitlines())
    assert run[:2] == ["ours", f"{summary('out/ours')['val_loss']:.4f}"]
    assert run[5:] == ["-", "flash_attention_for_cpu"]
    assert step == ["step:", "theirs", "-", "-", "1,234", "50.0%", "7", "-"]
