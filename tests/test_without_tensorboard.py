"""Without the package tensorboard, everything but logging works."""

import os
import sys
from pathlib import Path

import pytest
from many_processes import TINY, end, start
from running import ROOT, Said

pytestmark = pytest.mark.slow

TRAIN = ["train", *TINY[:-1], "data=repeats", "trainer.max_steps=2", "hydra.run.dir=run"]


def test_only_a_run_with_the_logger_needs_it_and_says_so(tmp_path: Path, monkeypatch) -> None:
    package = tmp_path / "hidden" / "tensorboard"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ModuleNotFoundError('No module tensorboard')")
    paths = [str(package.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.chdir(tmp_path)

    def run(script: str, *words: str) -> Said:
        command = [sys.executable, str(ROOT / "scripts" / f"{script}.py"), *words]
        return end(start(command, PYTHONPATH=os.pathsep.join(paths)))

    run(*TRAIN).refused("No module tensorboard: install it")
    assert not Path("run").exists()
    for words in (
        [*TRAIN, "~logger"],
        ["sample", "checkpoint=run", "max_new_tokens=3"],
        ["analyze", "checkpoint=run", "text=abcabc"],
    ):
        run(*words).succeeded()
