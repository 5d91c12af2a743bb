"""The model of a run that starts from trained weights (`init_from=`)."""

import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from headscope import checkpoint
from headscope.config import parse
from headscope.config.model import ModelConfig
from headscope.config.training import TrainConfig
from headscope.data.tokenizer import tokenizer_from_state
from headscope.errors import UserError


def with_trained_model(config: TrainConfig, words: Sequence[str]) -> TrainConfig:
    """`config` with the model settings of the checkpoint that `config.init_from` selects, so that
    nobody has to repeat them. `words` are the arguments of the command line.

    A key in `words`, such as `model.dropout=0.1`, keeps the value that it has in `config`. If
    `words` choose a part of the model, such as `model/norm=rms` or `model=gpt2`, they describe the
    whole model, and `config` is returned unchanged. It is also unchanged without `init_from`.
    """
    keys = [word.partition("=")[0].lstrip("+~") for word in words]
    if config.init_from is None or any(key.split("/")[0] == "model" for key in keys):
        return config
    stored = checkpoint.read(checkpoint.find(config.init_from, key="init_from"))
    model = asdict(stored.config.model)
    given = asdict(config.model)
    for key in keys:
        group, _, path = key.partition(".")
        if group == "model":
            copy_value(given, model, path.split("."))
    return replace(config, model=parse(ModelConfig, model, "model"))


def trained_vocab_size(init_from: str) -> int:
    """The size of the vocabulary of the checkpoint that `init_from` selects. A run that starts from
    it has the same tokenizer."""
    stored = checkpoint.read(checkpoint.find(init_from, key="init_from"))
    return tokenizer_from_state(stored.data["tokenizer"]).vocab_size


def check_same_tokenizer(given: str, words: Sequence[str]) -> None:
    """Raises UserError if the command line selects another tokenizer than the tokenizer in the
    checkpoint. The weights of a checkpoint can only be used with the tokenizer that they were
    trained with.

    `given` is the value of the key init_from, which selects the checkpoint. `words` are the
    arguments of the command line.
    """
    split = [word.lstrip("+").partition("=") for word in words]
    selected = {key: value for key, _, value in split if re.fullmatch(r"tokenizer(\.\w+)?", key)}
    if not selected:
        return
    stored = checkpoint.read(checkpoint.find(given, key="init_from")).config.tokenizer
    name = stored._target_.rpartition(".")[2]
    for key, value in selected.items():
        stored_value = name if key == "tokenizer" else getattr(stored, key.partition(".")[2], None)
        if value != str(stored_value):
            raise UserError(
                f"{key}={value}: the weights of init_from={given} need their own tokenizer, "
                f"{key}={stored_value}; leave {key}= out"
            )


def copy_value(source: Any, target: dict[str, Any], path: list[str]) -> None:
    """Copies the value at a path of keys from one nested dictionary to another."""
    *groups, last = path
    for name in groups:
        source, target = source[name], target[name]
    target[last] = source[last]
