"""Writes an imported model in the form of a run, so that all scripts can open it."""

from pathlib import Path

import torch

from headscope import checkpoint
from headscope.conversion.loaded import Loaded
from headscope.files import replacing


def write_run(loaded: Loaded, folder: Path) -> None:
    """Writes `loaded` to checkpoints/best.ckpt in `folder`. This checkpoint has no training state:
    a run can start from it with init_from=, but it cannot be resumed. Raises UserError if the file
    cannot be written."""
    weights = loaded.model.state_dict()
    content = {
        "headscope": checkpoint.contents(
            config=loaded.config,
            tokenizer=loaded.tokenizer,
            store="none",
            precision=loaded.precision,
        ),
        "state_dict": {f"model.{name}": weight for name, weight in weights.items()},
        "global_step": 0,
    }
    path = folder / "checkpoints" / "best.ckpt"
    path.parent.mkdir()
    size = sum(parameter.nbytes for parameter in loaded.model.parameters())
    with replacing(path, size=size) as file:
        torch.save(content, file)
