"""The model of a run that starts from trained weights (`init_from=`)."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from headscope import checkpoint
from headscope.config import parse
from headscope.config.model import ModelConfig
from headscope.config.training import TrainConfig
from headscope.data.tokenizer import tokenizer_from_state


def with_trained_model(config: TrainConfig, words: Sequence[str]) -> TrainConfig:
    """`config` with the model settings of the checkpoint that `config.init_from` selects, so that
    nobody has to repeat them. `words` are the arguments of the command line.

    A key in `words`, such as `model.dropout=0.1`, keeps the value that it has in `config`. If
    `words` choose a part of the model, such as `model/norm=rms` or `model=gpt2`, they describe the
    whole model, and `config` is returned unchanged. Without `init_from`, too.
    """
    keys = [word.partition("=")[0].lstrip("+~") for word in words]
    if config.init_from is None or any(key.split("/")[0] == "model" for key in keys):
        return config
    content = checkpoint.read(checkpoint.find(config.init_from, key="init_from"))
    model = asdict(checkpoint.config_of(content).model)
    given = asdict(config.model)
    for key in keys:
        group, _, path = key.partition(".")
        if group == "model":
            copy_value(given, model, path.split("."))
    return replace(config, model=parse(ModelConfig, model, "model"))


def trained_vocab_size(init_from: str) -> int:
    """The size of the vocabulary of the checkpoint that `init_from` selects. A run that starts from
    it has the same tokenizer."""
    content = checkpoint.read(checkpoint.find(init_from, key="init_from"))
    return tokenizer_from_state(content["headscope"]["tokenizer"]).vocab_size


def copy_value(source: Any, target: dict[str, Any], path: list[str]) -> None:
    """Copies the value at a path of keys from one nested dictionary to another."""
    *groups, last = path
    for name in groups:
        source, target = source[name], target[name]
    target[last] = source[last]
