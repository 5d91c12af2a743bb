"""Checkpoints as training writes them, without any training."""

from pathlib import Path
from typing import Any

import torch
from composing import training_config

from headscope.config.parse import parse
from headscope.config.training import TrainConfig
from headscope.data.tokenizer import Tokenizer, byte
from headscope.nn import GPT
from headscope.trained import checkpoint

OPTIMIZER_STEPS = "epoch_loop.manual_optimization.optim_step_progress"

SIZES = ["model.block_size=8", "model.embed_dim=8", "model.layers=2"]


def configuration(*overrides: str) -> dict:
    """The configuration in a checkpoint of a run with these words, as plain data."""
    return training_config(*SIZES, *overrides).kept()


def content(
    config: dict | None = None, tokenizer: Tokenizer | None = None, *, step: int = 7, seed: int = 0
) -> tuple[dict[str, Any], GPT]:
    """The content of a checkpoint: its plain data, and `tensors`. The second value is its model."""
    parsed, tokenizer = parse(TrainConfig, config or configuration()), tokenizer or byte([])
    torch.manual_seed(seed)
    model = checkpoint.build_model(parsed.model, vocab_size=tokenizer.vocab_size)
    return {
        **checkpoint.contents(parsed, tokenizer, "none", "32-true"),
        "step": step,
        "training": {
            "loops": {OPTIMIZER_STEPS: {"total": {"completed": step}}},
            "callbacks": {},
            "language_model": {"threads": 1, "processes": 1},
        },
        "tensors": {f"model.{name}": weight for name, weight in model.state_dict().items()},
    }, model


def save(content: dict[str, Any], path: str | Path) -> None:
    """Writes a checkpoint with this content."""
    data = {key: value for key, value in content.items() if key != "tensors"}
    checkpoint.write(Path(path), content["tensors"], data)


def opened(path: str | Path) -> dict[str, Any]:
    """The content of a checkpoint."""
    stored = checkpoint.read(Path(path))
    return {**stored.data, "tensors": stored.tensors("")}


def copy_at_step(source: Path, target: Path, step: int) -> None:
    """Copies a checkpoint, and changes the step at which it was saved."""
    save(opened(source) | {"step": step}, target)


def weights(run: str | Path) -> dict[str, torch.Tensor]:
    """The tensors of the newest checkpoint of a run."""
    return opened(Path(run, "checkpoints", "last.safetensors"))["tensors"]


def assert_same_weights(one: str | Path, other: str | Path) -> None:
    """Two runs have the same weights and the same state of the optimizer, bit for bit."""
    torch.testing.assert_close(weights(one), weights(other), rtol=0, atol=0)
