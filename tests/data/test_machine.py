"""How many cores other programs use, and what a run says about it."""

import os
import subprocess
import sys
import time

import pytest
from many_processes import SCRIPT, TINY, end, start

from headscope.data import machine
from headscope.data.machine import core_seconds, cores_of_others, process_cores

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what cores do")


@on_linux
def test_the_idle_time_is_that_of_the_cores_of_this_process(tmp_path):
    assert core_seconds(tmp_path) is None  # not Linux
    own = sorted(os.sched_getaffinity(0))
    lines = [f"cpu{core} 5 6 7 {100 * (n + 1)} 50 3" for n, core in enumerate([*own, 999])]
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/stat").write_text("\n".join(["cpu  9 9 9 99999 9", *lines, "intr 1 2"]))
    now, idle, used = core_seconds(tmp_path)
    ticks = sum(100 * (n + 1) + 50 for n in range(len(own)))
    assert idle == ticks / os.sysconf("SC_CLK_TCK")
    assert now <= time.monotonic()
    assert 0 < used <= sum(os.times()[:2])


def test_the_cores_of_others_are_those_that_neither_idle_nor_work_for_this_process(monkeypatch):
    monkeypatch.setattr(machine, "core_seconds", lambda: (20.0, 7.0, 5.0))
    monkeypatch.setattr(machine, "process_cores", lambda: 4)
    assert cores_of_others((10.0, 1.0, 2.0)) == 4 - (6 + 3) / 10
    assert cores_of_others((10.0, -100.0, 0.0)) == 0
    assert cores_of_others(None) == 0


@on_linux
@pytest.mark.slow
def test_training_says_that_other_programs_use_the_cores(tmp_path):
    words = [*TINY, "data=modular", "trainer.max_steps=1", f"hydra.run.dir={tmp_path}/run"]
    words.append(f"store_dir={tmp_path}")
    threads = str(process_cores() + 1)
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        ended = end(start([sys.executable, SCRIPT, *words], OMP_NUM_THREADS=threads))
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    assert ended.code == 0, ended.err
    [line] = [line for line in ended.out.splitlines() if line.startswith("other programs use")]
    assert f"of {process_cores()} cores" in line
    assert "OMP_NUM_THREADS=" in line
