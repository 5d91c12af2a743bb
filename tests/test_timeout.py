"""A hung test fails, and nothing that it started goes on."""

import os
import re
import subprocess
import sys

import psutil
import pytest
from many_processes import runs
from running import ROOT

pytestmark = pytest.mark.slow

HANGS = """
import subprocess
from pathlib import Path

def test_it():
    child = subprocess.Popen(["sh", "-c", "sleep 1000 & echo $! > grandchild; wait"])
    Path("child").write_text(str(child.pid))
    child.wait()
"""


def test_children_of_a_hung_test_are_killed(tmp_path):
    (tmp_path / "test_hangs.py").write_text(HANGS)
    said = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "leftovers", "-o", "timeout=1", "test_hangs.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": f"{ROOT}/tests:{ROOT}/src"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert said.returncode == 1
    assert re.search(r"Timeout \(?>1\.0s", said.stdout)
    for name in ("child", "grandchild"):
        pid = int((tmp_path / name).read_text())
        assert not psutil.pid_exists(pid) or not runs(psutil.Process(pid))
