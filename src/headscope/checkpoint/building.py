"""Models built from their configuration; sizes that are too large are refused before anything is
allocated, as they may come from a stranger or be a typo."""

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from headscope.config import build_part
from headscope.config.model import ModelConfig
from headscope.errors import UserError
from headscope.nn import GPT, FeedForward, cache_bytes_per_token

LIMITS = {"layers": 10_000, "heads": 4_096, "previous_tokens": 4_096}
"""Each of these makes Python objects, which take time and memory whatever their width is."""

TABLE_SHARE = 16
"""Masks and position tables may take one part in so many of the machine's memory."""


def build_model(config: ModelConfig, *, vocab_size: int) -> GPT:
    """The model that the `model` part of a configuration describes, with fresh weights.

    Raises UserError when its sizes do not fit.
    """
    check_limits(config)
    try:
        return make_model(config, vocab_size=vocab_size)
    except RuntimeError as error:  # more memory than there is, or than can be counted
        reason = str(error).splitlines()[0]
        raise UserError(f"a model of these sizes cannot be made: {reason}") from error


def make_model(config: ModelConfig, *, vocab_size: int) -> GPT:
    """The parts of a model, each built with the keys that concern it."""
    return GPT(
        vocab_size=vocab_size,
        block_size=config.block_size,
        embed_dim=config.embed_dim,
        layers=config.layers,
        attention=partial(
            build_part(config.attention),
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            qkv_bias=config.qkv_bias,
            out_bias=config.bias,
        ),
        position=build_part(config.position),
        norm=partial(build_part(config.norm), bias=config.bias),
        feed_forward=partial(
            FeedForward, activation=build_part(config.activation), bias=config.bias
        ),
        dropout=config.dropout,
        tied_head=config.tied_head,
        scale_embedding=config.scale_embedding,
        previous_tokens=config.previous_tokens,
        norm_embedding=config.norm_embedding,
        zero_init=config.zero_init,
        logit_cap=config.logit_cap,
    )


def check_model(config: ModelConfig, *, vocab_size: int) -> None:
    """Raises UserError when a model cannot be built, or not be trained in this machine's memory.
    Quick, and of little memory, whatever the sizes are."""
    check_memory(
        lambda layers: build_model(replace(config, layers=layers), vocab_size=vocab_size),
        config,
        copies=3,
    )


def check_limits(settings: ModelConfig) -> None:
    """Raises UserError when one of the model's `settings` is beyond `LIMITS`, or its block_size
    makes masks and position tables larger than a `TABLE_SHARE`th of this machine's memory.

    No weight grows with these, so that a checkpoint's own weights do not bound them.
    """
    for key, limit in LIMITS.items():
        value = getattr(settings, key)
        if value > limit:
            raise UserError(f"model.{key}={value} must be at most {limit:,}")
    size, width = settings.block_size, max(settings.embed_dim, settings.head_dim or 0)
    # A boolean mask in every layer, and a table of positions, while it is computed in float64.
    needed, allowed = (
        size * (settings.layers * size + 32 * width),
        machine_memory() / TABLE_SHARE,
    )
    if needed > allowed:
        raise UserError(
            f"model.block_size={size} with model.embed_dim={settings.embed_dim} and "
            f"model.layers={settings.layers} needs {in_gib(needed)} for masks and position "
            f"tables; at most {in_gib(allowed)}, a {TABLE_SHARE}th of this machine's memory, is "
            "allowed"
        )


def check_memory(make: Callable[[int], GPT], settings: ModelConfig, *, copies: int) -> None:
    """Raises UserError when the model that `make` builds, called with the number of layers, cannot
    be in this machine's memory.

    `copies` is the number of tensors of each parameter's size: training has at least three (weight,
    gradient, momentum). A model of one layer is built on PyTorch's meta device, where tensors have
    shapes and no memory, and multiplied.
    """
    check_limits(settings)
    layers = settings.layers
    with torch.device("meta"):
        model = make(min(layers, 1))  # `make` refuses those below 1
    needed = copies * (
        _bytes(model.parameters()) + (layers - 1) * _bytes(model.blocks[0].parameters())
    )
    memory = machine_memory()
    if needed > memory:
        raise UserError(
            f"a model of these sizes needs at least {in_gib(needed)}, and this machine has "
            f"{in_gib(memory)} of memory: lower model.layers, model.embed_dim or the vocabulary"
        )


def check_samples(model: GPT, count: int) -> None:
    """Raises UserError when the keys, values and probabilities of `count` texts that are sampled at
    once cannot be in this machine's memory."""
    vocab_size = model.embedding.num_embeddings
    needed = count * (cache_bytes_per_token(model) * model.block_size + 32 * vocab_size)
    if needed > machine_memory():
        raise UserError(
            f"num_samples={count} needs {in_gib(needed)}, and this machine has "
            f"{in_gib(machine_memory())} of memory: lower num_samples"
        )


@contextmanager
def no_larger_than(weights: Mapping[str, Tensor], *, name: str) -> Iterator[None]:
    """Inside, a model of at most twice the parameters of `weights` can be built.

    Twice, since a tied output head is created and then replaced; `load_state_dict` compares the
    exact shapes. `name` is what the error calls their file.

    Raises UserError before memory is used for more.
    """
    number, size = 2 * len(weights), 2 * sum(weight.numel() for weight in weights.values())
    owner = threading.get_ident()

    def count(module: nn.Module, key: str, parameter: nn.Parameter | None) -> None:
        nonlocal number, size
        if parameter is not None and threading.get_ident() == owner:
            number, size = number - 1, size - parameter.numel()
            if number < 0 or size < 0:
                raise UserError(f"{name} describes a larger model than it has weights for")

    handle = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        handle.remove()


def machine_memory() -> int:
    """The physical memory of this machine, in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def in_gib(size: float) -> str:
    return f"{size / 2**30:,.1f} GiB"


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
