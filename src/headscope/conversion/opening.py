"""Opens a checkpoint or a Hugging Face folder from Python."""

from dataclasses import replace
from pathlib import Path

import torch

from headscope import checkpoint
from headscope.conversion.folder import is_model_folder, load_folder
from headscope.conversion.loaded import Loaded


def load(path: str | Path | None = None, *, device: str | torch.device = "cpu") -> Loaded:
    """See `headscope.load`."""
    chosen = checkpoint.pick_device(str(device))
    if path is not None and is_model_folder(Path(path)):
        loaded = load_folder(Path(path))
        return replace(loaded, model=loaded.model.to(chosen))
    found = checkpoint.find(None if path is None else str(path))
    return Loaded(**vars(checkpoint.load(found, device=chosen)))
