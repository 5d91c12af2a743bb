"""headscope: train a small GPT and see what its attention heads do."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from headscope.cli.python import TrainResult, train
    from headscope.config.own_parts import register
    from headscope.conversion.loaded import Loaded
    from headscope.errors import UserError
    from headscope.nn import *  # noqa: F403

__version__ = "0.1.0"

PARTS = (
    *("GPT", "MultiHeadAttention", "StackedHeads", "AdditiveAttention", "scaled_dot_product"),
    *("Position", "NoPosition", "Learned", "Sinusoidal", "Rotary", "Alibi", "Relative"),
    *("HeadBias", "Index", "Normalized", "Digits"),
)
"""The names that are also in `headscope.nn`: the model, its attention layers and positions."""

__all__ = ["TrainResult", "UserError", "load", "register", "train", *PARTS]

ELSEWHERE = {
    "TrainResult": "headscope.cli.python",
    "UserError": "headscope.errors",
    "register": "headscope.config.own_parts",
    "train": "headscope.cli.python",
}
"""The modules of the other names. A module is imported when one of its names is used, because
importing torch and Hydra takes seconds."""


def __getattr__(name: str) -> Any:
    if name == "nn":
        return import_module("headscope.nn")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(ELSEWHERE.get(name, "headscope.nn")), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def load(
    path: "str | Path | None" = None, *, device: str = "cpu", parts: "str | Path | None" = None
) -> "Loaded":
    """Loads a model with its tokenizer.

    `path` is a checkpoint file, a run folder, or the folder of a Hugging Face model, which the
    package transformers opens. From a run folder, best.safetensors is loaded. If `path` is None,
    the newest run in outputs/ is loaded. `parts` is the Python file that registers the model's own
    parts, if it has any; a file that a checkpoint names is never executed.

    Raises UserError if no checkpoint is found, if the file is not a headscope checkpoint, if parts,
    transformers or the device are missing, or if headscope does not compute the same logits as the
    Hugging Face model.
    """
    from headscope.config.own_parts import load_parts
    from headscope.conversion.loaded import load

    load_parts(None if parts is None else str(parts))
    return load(path, device=device)
