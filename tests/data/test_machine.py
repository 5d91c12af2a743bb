"""How many cores other programs use, and what a run says about it."""

import subprocess
import sys

import pytest
from many_processes import SCRIPT, TINY, end, start

from headscope.data.machine import process_cores


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what cores do")
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
