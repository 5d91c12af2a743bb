"""headscope: train a small GPT and see what its attention heads do."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from headscope.checkpoint import Checkpoint

__version__ = "0.1.0"


def load(path: "str | Path | None" = None, *, device: str = "cpu") -> "Checkpoint":
    """Loads a checkpoint with its model and tokenizer.

    `path` is a .ckpt file, or a run folder, from which best.ckpt is loaded. None means the newest
    run in outputs/. Raises UserError when there is no checkpoint, or the file is not a checkpoint
    of headscope.
    """
    from headscope import checkpoint

    return checkpoint.load(checkpoint.find(None if path is None else str(path)), device=device)
