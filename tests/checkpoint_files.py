"""Checkpoints as training writes them, without any training."""

from dataclasses import asdict

import torch
from composing import training_config

from headscope import checkpoint
from headscope.config import parse
from headscope.config.training import TrainConfig
from headscope.data.tokenizer import Tokenizer, byte
from headscope.nn import GPT

SIZES = ["model.block_size=8", "model.embed_dim=8", "model.layers=2"]


def configuration(*overrides: str) -> dict:
    """What a checkpoint holds of these words, as plain data."""
    return asdict(training_config(*SIZES, *overrides))


def content(
    config: dict | None = None, tokenizer: Tokenizer | None = None, *, step: int = 7, seed: int = 0
) -> tuple[dict, GPT]:
    """What training saves, and the model that it is of."""
    parsed, tokenizer = parse(TrainConfig, config or configuration()), tokenizer or byte([])
    torch.manual_seed(seed)
    model = checkpoint.build_model(parsed.model, vocab_size=tokenizer.vocab_size)
    return {
        "headscope": checkpoint.contents(
            config=parsed, tokenizer=tokenizer, store="none", precision="32-true"
        ),
        "state_dict": {f"model.{name}": weight for name, weight in model.state_dict().items()},
        "global_step": step,
        "optimizer_states": [{"state": {}}],
        "lr_schedulers": [],
        "callbacks": {},
        "loops": {},
        "pytorch-lightning_version": "2.6.0",
    }, model
