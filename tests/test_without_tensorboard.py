"""Without the package tensorboard, everything but logging works."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from running import ROOT

pytestmark = pytest.mark.slow

WORDS = [
    *("data=repeats", "tokenizer=char", "model.embed_dim=32", "model.layers=1"),
    *("trainer.max_steps=2", "trainer.val_every_steps=2", "hydra.run.dir=run"),
]


@pytest.fixture
def run_without_tensorboard(tmp_path: Path):
    """run(script, words) runs a script in a process that cannot import tensorboard."""
    package = tmp_path / "hidden" / "tensorboard"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ModuleNotFoundError('No module', name=__name__)")
    paths = [str(package.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}

    def run(script: str, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(ROOT / "scripts" / f"{script}.py"), *words]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )

    return run


def test_a_run_without_a_logger_and_its_checkpoint_do_not_need_it(run_without_tensorboard):
    for script, words in {
        "train": [*WORDS, "~logger"],
        "sample": ["checkpoint=run", "max_new_tokens=3"],
        "analyze": ["checkpoint=run", "text=abcabc"],
    }.items():
        done = run_without_tensorboard(script, *words)
        assert done.returncode == 0, done.stderr


def test_a_run_with_the_logger_says_what_it_needs(run_without_tensorboard, tmp_path: Path):
    done = run_without_tensorboard("train", *WORDS)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("Error: logger=tensorboard needs the package")
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()
