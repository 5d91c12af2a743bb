"""What several tests of reports need."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_files import content, opened, save

TEXT_FILE = {"_target_": "headscope.TextFiles", "path": "text.txt"}
"""The key `data` of the configuration of a run that has read text.txt."""


def rows_of(file: Path) -> list[dict[str, str]]:
    with file.open() as lines:
        return list(csv.DictReader(lines))


def column(rows: list[dict[str, str]], name: str) -> torch.Tensor:
    return torch.tensor([float(row[name]) for row in rows])


def as_json(report: Path) -> dict[str, Any]:
    """heads.json, which must be valid JSON."""
    return json.loads((report / "heads.json").read_text(), parse_constant=pytest.fail)


def moments_of(run: Path, steps: tuple[int, ...] = (0, 3, 7)) -> list[Path]:
    """Checkpoints of the run at these steps, each of other weights, as training keeps them."""
    files = [run / "checkpoints" / f"step_{step:06}.safetensors" for step in steps]
    for step, file in zip(steps, files, strict=True):
        saved = opened(run / "checkpoints" / "best.safetensors")
        fresh, _ = content(step=step, seed=step)
        save(saved | {key: fresh[key] for key in ("tensors", "step")}, file)
    return files
