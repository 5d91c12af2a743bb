"""Builds the tokenizer and the model of a checkpoint file. The file of a stranger cannot run code:
it can only name parts of headscope."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from headscope.config.parts import Part, build_part
from headscope.data.tokenizer import Tokenizer
from headscope.errors import UserError
from headscope.nn import GPT
from headscope.nn.held import HELD, restore_held
from headscope.trained.checkpoint.building import build_model_for
from headscope.trained.checkpoint.file import Stored


def own_tokenizer(stored: Stored) -> type | None:
    """The class of a checkpoint's tokenizer, if it is not headscope's."""
    part = stored.config.tokenizer
    if part is None or stored.data["tokenizer"].get("kind") != "own":
        return None
    made = build_part(part, "tokenizer")
    return made.func if isinstance(made.func, type) else None


class WithoutInitialization(TorchFunctionMode):
    """Inside the `with` block, a new model has arbitrary weights instead of random initial ones,
    which saves most of the time to load a model. All weights must then be read from a file."""

    RANDOM: tuple[Any, ...] = (torch.Tensor.normal_, torch.Tensor.uniform_, nn.init.normal_)
    RANDOM += (nn.init.uniform_, nn.init.kaiming_uniform_)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self.RANDOM:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def build_from_weights(config: Part, tokenizer: Tokenizer, weights: Mapping[str, Tensor]) -> GPT:
    """The model with these weights, perhaps with held outputs. Raises UserError for wrong ones."""
    check_sizes(config, tokenizer, weights)
    with WithoutInitialization():
        model = build_model_for(config, tokenizer)
    load_weights(model, restore_held(model, weights))
    return model


def check_sizes(config: Part, tokenizer: Tokenizer, weights: Mapping[str, Tensor]) -> None:
    """Raises UserError if `weights` are of another size than the model, before it is built. So a
    small file with a large configuration uses little memory. The same if it is unknown where values
    of heads are held."""
    layers = len({name.split(".")[1] for name in weights if name.startswith("blocks.")})
    shape = tuple(weights["embedding.weight"].shape) if "embedding.weight" in weights else ()
    own = (config.layers, (tokenizer.vocab_size, config.embed_dim))
    if (layers, shape) != own:
        sizes = f"{layers} layers and an embedding of {shape}"
        raise UserError(f"the weights have {sizes}, but the model {own[0]} layers and {own[1]}")
    for name in filter(HELD.fullmatch, weights):
        if name.endswith("values") and f"{name.removesuffix('values')}mask" not in weights:
            raise UserError(f"the weights have {name}, but not its mask: the file is damaged")


def load_weights(model: GPT, weights: Mapping[str, Tensor]) -> None:
    """Loads a state dict. Raises UserError for other names, shapes or ties than the model's."""
    both = [weights[name] for name in ("head.weight", "embedding.weight") if name in weights]
    tied = model.head.weight is model.embedding.weight
    if tied and len(both) == 2 and not torch.equal(*both):
        raise UserError("embedding and output head differ, but model.tied_head=true ties them")
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        problem = " ".join(str(error).splitlines()[-1].split())[:300]
        raise UserError(f"the weights are those of another model: {problem}") from error


def sources(part: Part | None, group: str) -> list[str]:
    """One line for each file, folder or dataset that a part of a checkpoint names."""
    return [
        f"Reading {group}.{key}={value}, as the checkpoint says"
        for key in ("path", "name")
        if (value := (part or Part()).get(key)) is not None
    ]
