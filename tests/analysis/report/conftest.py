"""A run to analyze, without any training."""

from pathlib import Path

import pytest
from checkpoint_files import content, save


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run's folder with a checkpoint of two layers of four heads, of 8 tokens."""
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("We the people of the United States. " * 40)
    saved, _ = content()
    saved["config"]["data"] = {
        "_target_": "headscope.data.own_files.TextFiles",
        "path": "text.txt",
    }
    checkpoints = tmp_path / "outputs" / "run" / "checkpoints"
    checkpoints.mkdir(parents=True)
    save(saved, checkpoints / "best.safetensors")
    Path("outputs/latest").write_text("run")
    return checkpoints.parent
