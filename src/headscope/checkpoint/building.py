"""Builds models from their configuration.

A configuration may contain a typo or come from an untrusted file. So sizes that are too large raise
an error before any memory is allocated.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode

from headscope.config import build_part
from headscope.config.model import ModelConfig
from headscope.data.base_tokenizer import Tokenizer
from headscope.data.machine import machine_memory
from headscope.errors import UserError
from headscope.nn import GPT, cache_bytes_per_token, gpt_from_keys

LIMITS = {"layers": 10_000, "heads": 4_096, "ngrams": 64}
"""Maximum values of the keys that determine how many Python objects are created. Python objects
cost time and memory even if their tensors are small."""

TABLE_SHARE = 16
"""Masks and position tables may use at most 1 / TABLE_SHARE of this machine's memory."""


def build_model(config: ModelConfig, *, vocab_size: int, end_of_text: int | None = None) -> GPT:
    """Build a model with untrained weights from the `model` part of a configuration.

    A model with a document mask needs the id of the end-of-text token. The default is the last
    token of the vocabulary, as in headscope's own tokenizers.

    Raises UserError if the sizes in `config` are too large or do not fit together.
    """
    check_limits(config)
    try:
        return make_model(config, vocab_size=vocab_size, end_of_text=end_of_text)
    except RuntimeError as error:  # out of memory, or a size that overflows an integer
        reason = str(error).splitlines()[0]
        raise UserError(
            f"a model of these sizes cannot be built: {reason}; choose smaller sizes"
        ) from error


def build_model_for(config: ModelConfig, tokenizer: Tokenizer) -> GPT:
    """Build a model with untrained weights for the tokens of a tokenizer. Raises UserError for the
    same reasons as `build_model`, and if a document mask needs an end-of-text token that the
    tokenizer does not have."""
    if config.document_mask and tokenizer.end_of_text is None:
        raise UserError(
            "model.document_mask=true: this tokenizer has no end-of-text token, so nothing marks "
            "the documents; set model.document_mask=false"
        )
    return build_model(config, vocab_size=tokenizer.vocab_size, end_of_text=tokenizer.end_of_text)


def make_model(config: ModelConfig, *, vocab_size: int, end_of_text: int | None = None) -> GPT:
    """Build the model without the checks of `build_model`."""
    keys = {
        key: build_part(value) if hasattr(value, "_target_") else value
        for key, value in vars(config).items()
        if key != "_target_"
    }
    return gpt_from_keys(vocab_size=vocab_size, end_of_text=end_of_text, **keys)


def check_model(config: ModelConfig, *, vocab_size: int) -> None:
    """Raises UserError if the model cannot be built, or if training it needs more than this
    machine's memory.

    The check itself is fast and needs little memory, even if the model is too large.
    """
    check_memory(
        lambda layers: build_model(replace(config, layers=layers), vocab_size=vocab_size),
        config,
        copies=3,
    )


def check_limits(settings: ModelConfig) -> None:
    """Raises UserError if a value in `settings` is above its limit in LIMITS. Also raises UserError
    if the masks and position tables need more than 1 / TABLE_SHARE of this machine's memory.

    These values need their own limits: for a model from a checkpoint, `no_larger_than` limits only
    the parameters.
    """
    for key, limit in LIMITS.items():
        value = getattr(settings, key)
        if value > limit:
            raise UserError(f"model.{key}={value} must be at most {limit:,}")
    size, width = settings.block_size, max(settings.embed_dim, settings.head_dim or 0)
    # The memory in bytes of a boolean mask in each layer, and of a position table while it is
    # computed in float64.
    needed = size * (settings.layers * size + 32 * width)
    allowed = machine_memory() / TABLE_SHARE
    if needed > allowed:
        raise UserError(
            f"model.block_size={size} with model.embed_dim={settings.embed_dim} and "
            f"model.layers={settings.layers} needs {in_gib(needed)} for masks and position "
            f"tables. The limit is {in_gib(allowed)}, 1/{TABLE_SHARE} of this machine's memory: "
            "lower model.block_size"
        )


def check_memory(make: Callable[[int], GPT], settings: ModelConfig, *, copies: int) -> None:
    """Raises UserError if a model does not fit into this machine's memory.

    `make` builds the model with a given number of layers. `copies` is how many tensors of the same
    size each parameter needs: in training at least three (weight, gradient, momentum). The needed
    memory is computed from a model with a single layer on PyTorch's meta device, where tensors use
    no memory.
    """
    check_limits(settings)
    layers = settings.layers
    with torch.device("meta"):
        model = make(min(layers, 1))  # if layers is below 1, `make` raises UserError
    needed = copies * (
        _bytes(model.parameters()) + (layers - 1) * _bytes(model.blocks[0].parameters())
    )
    memory = machine_memory()
    if needed > memory:
        raise UserError(
            f"a model of these sizes needs at least {in_gib(needed)}, but this machine has "
            f"{in_gib(memory)} of memory: lower model.layers, model.embed_dim or the vocabulary"
        )


def check_samples(model: GPT, count: int) -> None:
    """Raises UserError if `count` texts cannot be sampled together, because their keys, values and
    probabilities do not fit into this machine's memory."""
    vocab_size = model.embedding.num_embeddings
    needed = count * (cache_bytes_per_token(model) * model.block_size + 32 * vocab_size)
    if needed > machine_memory():
        raise UserError(
            f"num_samples={count} needs {in_gib(needed)}, but this machine has "
            f"{in_gib(machine_memory())} of memory: lower num_samples"
        )


@contextmanager
def no_larger_than(weights: Mapping[Any, Tensor], *, name: str) -> Iterator[None]:
    """Inside the `with` block, building a model with more than twice the parameters of `weights`
    raises UserError.

    The error is raised at the first parameter above the limit, before memory for further parameters
    is allocated. The limit has the factor two, because a tied output head is first created with its
    own weight, which is then replaced. `load_state_dict` checks the exact shapes later. The
    error message uses `name` to say where the configuration comes from.
    """
    number, size = 2 * len(weights), 2 * sum(weight.numel() for weight in weights.values())
    this_thread = threading.get_ident()

    def count(module: nn.Module, key: str, parameter: nn.Parameter | None) -> None:
        nonlocal number, size
        if parameter is not None and threading.get_ident() == this_thread:
            number, size = number - 1, size - parameter.numel()
            if number < 0 or size < 0:
                raise UserError(
                    f"{name} describes a larger model than its weights: the file is damaged"
                )

    handle = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        handle.remove()


class WithoutInitialization(TorchFunctionMode):
    """Inside the `with` block, no random initial weights are drawn: the weights of a new model are
    arbitrary, and all must then be read from a file. This saves much of the time to load a model.
    It also saves memory: the operating system provides memory only when it is written to."""

    RANDOM = frozenset(
        {
            torch.Tensor.normal_,
            torch.Tensor.uniform_,
            nn.init.normal_,
            nn.init.uniform_,
            nn.init.kaiming_uniform_,
        }
    )

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function in self.RANDOM:
            return args[0] if args else kwargs["tensor"]
        return function(*args, **(kwargs or {}))


def in_gib(size: float) -> str:
    return f"{size / 2**30:,.1f} GiB"


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
