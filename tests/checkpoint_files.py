"""Checkpoints as training writes them, without any training."""

from functools import cache

import torch
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from headscope import checkpoint
from headscope.command_line import CONF
from headscope.config import register_schemas
from headscope.data.tokenizer import Tokenizer, byte
from headscope.nn import GPT

SIZES = ["model.block_size=8", "model.embed_dim=8", "model.layers=2"]


@cache
def composed(*overrides: str) -> DictConfig:
    register_schemas()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("train", [*SIZES, *overrides])


def configuration(*overrides: str) -> dict:
    return OmegaConf.to_container(composed(*overrides), resolve=True)


def content(config: dict | None = None, tokenizer: Tokenizer | None = None) -> tuple[dict, GPT]:
    """What training saves, and the model that it is of."""
    config, tokenizer = config or configuration(), tokenizer or byte([])
    torch.manual_seed(0)
    model = checkpoint.build_model(config["model"], vocab_size=tokenizer.vocab_size)
    return {
        "headscope": checkpoint.contents(
            config=config, tokenizer=tokenizer, store="none", overrides=SIZES
        ),
        "state_dict": {f"model.{name}": weight for name, weight in model.state_dict().items()},
        "global_step": 7,
        "optimizer_states": [{"state": {}}],
        "pytorch-lightning_version": "2.6.0",
    }, model
