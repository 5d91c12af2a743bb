"""headscope: train a small GPT and see what its attention heads do."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from headscope.checkpoint import Checkpoint

__version__ = "0.1.0"


def load(path: "str | Path | None" = None, *, device: str = "cpu") -> "Checkpoint":
    """Loads a checkpoint with its model and tokenizer.

    `path` is a .ckpt file or a run folder. From a run folder, best.ckpt is loaded. If `path` is
    None, the newest run in outputs/ is loaded. Raises UserError if no checkpoint is found, or if
    the file is not a headscope checkpoint.
    """
    from headscope import checkpoint

    return checkpoint.load(checkpoint.find(None if path is None else str(path)), device=device)
