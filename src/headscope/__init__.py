"""headscope: train a small GPT and see what its attention heads do."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from headscope.checkpoint import Checkpoint

__version__ = "0.1.0"


def load(path: "str | Path", *, device: str = "cpu") -> "Checkpoint":
    """A checkpoint, from its file or from a run's folder (the best then): its model and tokenizer.

    Raises ValueError when there is none, or it is no checkpoint of headscope.
    """
    from headscope import checkpoint

    return checkpoint.load(checkpoint.find(str(path)), device=device)
