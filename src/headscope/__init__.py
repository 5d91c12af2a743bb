"""headscope: train a small GPT and see what its attention heads do."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from headscope.checkpoint import Checkpoint

__version__ = "0.1.0"


def load(path: "str | Path | None" = None, *, device: str = "cpu") -> "Checkpoint":
    """A checkpoint, from its file, from a run's folder (the best then) or, of None, from the newest
    run in outputs/: its model and tokenizer.

    Raises UserError when there is none, or it is no checkpoint of headscope.
    """
    from headscope import checkpoint

    return checkpoint.load(checkpoint.find(None if path is None else str(path)), device=device)
