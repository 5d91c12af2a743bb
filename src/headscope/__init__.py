"""headscope: train a small GPT and see what its attention heads do."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from headscope.conversion.loaded import Loaded

__version__ = "0.1.0"


def load(path: "str | Path | None" = None, *, device: str = "cpu") -> "Loaded":
    """Loads a model with its tokenizer.

    `path` is a checkpoint file, a run folder, or the folder of a Hugging Face model, which the
    package transformers opens. From a run folder, best.safetensors is loaded. If `path` is None,
    the newest run in outputs/ is loaded. Raises UserError if no checkpoint is found, if the file is
    not a headscope checkpoint, if transformers is missing or cannot open the folder, or if
    headscope does not compute the same logits as the Hugging Face model.
    """
    from headscope.conversion.loaded import load

    return load(path, device=device)
