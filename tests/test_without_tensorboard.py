"""Without the package tensorboard, everything but logging works."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from running import ROOT

pytestmark = pytest.mark.slow

TRAIN = [
    *("train", "data=repeats", "tokenizer=char", "model.embed_dim=32", "model.layers=1"),
    *("trainer.max_steps=2", "trainer.val_every_steps=2", "hydra.run.dir=run"),
]


def test_only_a_run_with_the_logger_needs_it_and_says_so(tmp_path: Path) -> None:
    package = tmp_path / "hidden" / "tensorboard"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ModuleNotFoundError('No module tensorboard')")
    paths = [str(package.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    options = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}}

    def run(script: str, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(ROOT / "scripts" / f"{script}.py"), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, **options)

    done = run(*TRAIN)
    assert done.returncode == 1
    assert "Error: No module tensorboard: install it" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()
    for words in (
        [*TRAIN, "~logger"],
        ["sample", "checkpoint=run", "max_new_tokens=3"],
        ["analyze", "checkpoint=run", "text=abcabc"],
    ):
        done = run(*words)
        assert done.returncode == 0, done.stderr
