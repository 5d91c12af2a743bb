"""Opens a checkpoint of headscope, or the model of another tool."""

import os
from pathlib import Path

from headscope import trained
from headscope.config.own_parts import load_parts
from headscope.conversion.folder import load_folder
from headscope.trained import TrainedModel, checkpoint


def load(
    path: str | Path | None = None,
    *,
    step: int | None = None,
    device: str = "cpu",
    parts: str | Path | list[str] | None = None,
) -> TrainedModel:
    """Loads a model with its tokenizer.

    `path` is a checkpoint file, a run folder (its best.safetensors), or the folder of a Hugging
    Face model, which the package transformers opens. By default, it is the newest finished run in
    outputs/. `step` is a step that the run has kept: `load("run", step=300)` is `load("run@300")`,
    and `steps` of the result lists them. `parts` are the Python files or modules that define the
    model's own parts, if it has any; code that only a checkpoint names is never executed.

    Raises UserError if there is no checkpoint of headscope, if parts, transformers or the device
    are missing, or if headscope does not compute the same logits as the Hugging Face model.
    """
    load_parts(parts if parts is None or isinstance(parts, list) else str(parts))
    given = None if path is None else os.path.expanduser(path)
    if step is not None:
        given = f"{given or ''}@{step}"
    if given is None or not checkpoint.is_model_folder(Path(given)):
        return trained.load(checkpoint.find(given), device=device)
    chosen = checkpoint.pick_device(str(device))
    loaded = load_folder(Path(given))
    loaded.model.to(chosen)
    return loaded
