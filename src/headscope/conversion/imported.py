"""Writes an imported model as a checkpoint in the form of a run, which all commands can open."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from torch import Tensor

from headscope.config.parse import parse
from headscope.config.parts import CONF, Part
from headscope.config.training import TrainConfig
from headscope.data.tokenizer import Tokenizer
from headscope.errors import UserError
from headscope.files import new_folder
from headscope.nn import GPT
from headscope.trained import TrainedModel, checkpoint
from headscope.trained.records import digest_of


def write_checkpoint(output: Path, loaded: TrainedModel) -> None:
    """Writes an imported model to the new run folder `output`, for init_from=, not for resume=."""
    data = checkpoint.contents(
        config=replace(loaded.config, name=output.absolute().name),
        tokenizer=loaded.tokenizer,
        store="none",
        precision=loaded.precision,
    )
    data |= {"step": loaded.step, "texts": loaded.texts}
    write_weights(output, loaded.model.state_dict(), data)


def write_weights(output: Path, weights: Mapping[str, Tensor], data: dict[str, Any]) -> None:
    """Writes the new run folder `output` with a checkpoint of these weights and plain data."""
    with new_folder(output) as folder:
        path = folder / "checkpoints" / "best.safetensors"
        tensors = {f"model.{name}": weight for name, weight in weights.items()}
        checkpoint.write(path, tensors, data)


def untrained() -> dict[str, Any]:
    """The default settings of training in conf/, without steps: an imported model's are unknown."""

    def in_conf(name: str) -> dict[str, Any]:
        return yaml.safe_load((CONF / f"{name}.yaml").read_text(encoding="utf-8"))

    settings = in_conf("train")
    for entry in settings.pop("defaults"):
        for group, choice in entry.items() if isinstance(entry, dict) else ():
            if group in ("optimizer", "schedule", "trainer"):
                settings[group] = in_conf(f"{group}/{choice}")
    settings["trainer"]["max_steps"] = 0
    del settings["hydra"]
    return settings


def imported(
    path: Path,
    gpt: GPT,
    model: Part,
    tokenizer: Tokenizer,
    *,
    name: str,
    text: Path | None = None,
    step: int = 0,
) -> TrainedModel:
    """The checkpoint of a foreign model, trained for `step` steps on the file `text`, if known."""
    data = None if text is None else {"_target_": "headscope.TextFiles", "path": str(text)}
    settings = untrained() | {"name": name, "model": model, "data": data, "tokenizer": None}
    config = parse(TrainConfig, settings, composed=False)
    digest = digest_of({f"model.{key}": weight for key, weight in gpt.state_dict().items()})
    return TrainedModel(path, gpt, tokenizer, config, step, "32-true", None, digest)


def check_block_size(block_size: int | None, longest: int) -> None:
    """Raises UserError if a context length is not from 1 to `longest`. None is the longest."""
    if block_size is not None and not 1 <= block_size <= longest:
        raise UserError(f"block_size={block_size} must be from 1 to {longest}, the model's own")
