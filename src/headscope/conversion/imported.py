"""Writes an imported model as a checkpoint in the form of a run, so that all scripts can open
it."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from torch import Tensor

from headscope import checkpoint
from headscope.config.parse import parse
from headscope.config.parts import Part
from headscope.config.training import TrainConfig
from headscope.conversion.new_folder import new_folder
from headscope.data.tokenizer import Tokenizer
from headscope.errors import UserError
from headscope.nn import GPT
from headscope.trained import TrainedModel


def write_checkpoint(output: Path, loaded: TrainedModel) -> None:
    """Writes the new run folder `output` with the checkpoint best.safetensors of an imported model.

    The checkpoint has no training state: a run can start from it with init_from=, but it cannot be
    resumed. Raises UserError if it cannot be written.
    """
    data = checkpoint.contents(
        config=replace(loaded.config, name=output.absolute().name),
        tokenizer=loaded.tokenizer,
        store="none",
        precision=loaded.precision,
    )
    write_weights(output, loaded.model.state_dict(), data | {"step": loaded.step})


def write_weights(output: Path, weights: Mapping[str, Tensor], data: dict[str, Any]) -> None:
    """Writes the new run folder `output` with a checkpoint of these weights and plain data. Raises
    UserError if it cannot be written."""
    with new_folder(output) as folder:
        path = folder / "checkpoints" / "best.safetensors"
        tensors = {f"model.{name}": weight for name, weight in weights.items()}
        checkpoint.write(path, tensors, data)


UNTRAINED = """
seed: 1
resume: null
init_from: null
store_dir: data
parts: null
tokenizer: null
data: null
optimizer:
  {_target_: headscope.adamw, lr: 5.0e-5, weight_decay: 0.01, beta1: 0.9, beta2: 0.999}
schedule: {_target_: headscope.WarmupCosine, warmup_steps: 50, final_fraction: 0.0}
trainer:
  {max_steps: 0, batch_size: 4, accumulate: 2, gradient_clip: 1.0, val_every_steps: 100,
   val_batch_size: 4, final_validation: whole, log_every_steps: 10, accelerator: auto,
   devices: auto, num_nodes: 1, precision: auto, compile: auto,
   checkpoint_activations: false, loss_chunk_tokens: auto}
"""
"""How an imported model was trained is unknown, so these are the settings of
conf/experiment/finetune.yaml. There are no steps: the model card says so."""


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
    """The checkpoint of a model of another tool. `text` is the text that it was trained on, if that
    is known, and `step` the number of steps."""
    settings: Any = OmegaConf.to_container(OmegaConf.create(UNTRAINED))
    if text is not None:
        settings["data"] = {"_target_": "headscope.TextFiles", "path": str(text)}
    settings |= {"name": name, "model": model}
    config = parse(TrainConfig, settings, composed=False)
    return TrainedModel(path, gpt, tokenizer, config, step, "32-true", None)


def check_block_size(block_size: int | None, longest: int) -> None:
    """Raises UserError if a context length is not from 1 to `longest`. None is the longest."""
    if block_size is not None and not 1 <= block_size <= longest:
        raise UserError(
            f"block_size={block_size} must be from 1 to {longest}, the context length of the model"
        )
