"""A run to analyze, without any training."""

from pathlib import Path

import pytest
from checkpoint_files import content, save
from reports import TEXT_FILE


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run's folder with a checkpoint of two layers of four heads, of 8 tokens."""
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("We the people of the United States. " * 40)
    saved, _ = content()
    saved["config"]["data"] = TEXT_FILE
    checkpoints = tmp_path / "outputs" / "run" / "checkpoints"
    checkpoints.mkdir(parents=True)
    save(saved, checkpoints / "best.safetensors")
    Path("outputs/latest").write_text("run")
    return checkpoints.parent


@pytest.fixture
def analyze(script, run):
    """analyze("windows=1") writes a report on the run, if no word names another checkpoint."""

    def analyze(*words):
        if not any(word.startswith("checkpoint") for word in words):
            words = (f"checkpoint={run}", *words)
        said = script("analyze", *words)
        assert said.code == 0, said.err
        return said

    return analyze
