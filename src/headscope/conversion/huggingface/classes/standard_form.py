"""Models in standard form: heads that share one matrix, and rotary positions that rotate the halves
of a head. Every model with stacked heads or interleaved rotary positions computes the same function
as a model in standard form, whose weights are the same numbers in another order.

Shapes: C embed_dim, H heads, K kv heads, D head_dim.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from headscope.config.model import ModelConfig, MultiHeadConfig, RotaryConfig, StackedHeadsConfig
from headscope.conversion.huggingface.classes.sizes import Sizes

PARTS = ("query", "key", "value")


def is_interleaved(model: ModelConfig) -> bool:
    return isinstance(model.position, RotaryConfig) and model.position.interleaved


def is_stacked(model: ModelConfig) -> bool:
    return isinstance(model.attention, StackedHeadsConfig)


def of_config(model: ModelConfig) -> ModelConfig:
    """The configuration of the model in standard form."""
    if is_interleaved(model):
        assert isinstance(model.position, RotaryConfig)
        model = replace(model, position=replace(model.position, interleaved=False))
    if is_stacked(model):
        old = model.attention
        attention = MultiHeadConfig(scale=old.scale, qk_norm=old.qk_norm, out_proj=old.out_proj)
        model = replace(model, attention=attention)
    return model


def of_weights(model: ModelConfig, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights in standard form. `weights` is the state dict of `model`."""
    standard = dict(weights)
    for layer in range(model.layers):
        prefix = f"blocks.{layer}.attention."
        if is_stacked(model):
            fuse(standard, prefix, model.heads)
        if is_interleaved(model):
            reorder(standard, prefix, Sizes.of(model), halves=True)
    return standard


def undo(model: ModelConfig, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state dict of `model`, from its weights in standard form."""
    ours = dict(weights)
    for layer in range(model.layers):
        prefix = f"blocks.{layer}.attention."
        if is_interleaved(model):
            reorder(ours, prefix, Sizes.of(model), halves=False)
        if is_stacked(model):
            unfuse(ours, prefix, model.heads)
    return ours


def fuse(weights: dict[str, Tensor], prefix: str, heads: int) -> None:
    """Replaces the projections of each head by one matrix (3 H D, C), and their biases by one
    vector."""
    for kind in ("weight", "bias"):
        names = [f"{prefix}stack.{head}.{part}.{kind}" for part in PARTS for head in range(heads)]
        if names[0] in weights:
            weights[f"{prefix}qkv.{kind}"] = torch.cat([weights.pop(name) for name in names])


def unfuse(weights: dict[str, Tensor], prefix: str, heads: int) -> None:
    """Undoes `fuse`."""
    for kind in ("weight", "bias"):
        if f"{prefix}qkv.{kind}" in weights:
            rows = weights.pop(f"{prefix}qkv.{kind}").chunk(3 * heads)
            for number, part in enumerate(PARTS):
                for head in range(heads):
                    name = f"{prefix}stack.{head}.{part}.{kind}"
                    weights[name] = rows[number * heads + head]


def reorder(weights: dict[str, Tensor], prefix: str, sizes: "Sizes", *, halves: bool) -> None:
    """Moves dimension 2i of each query and key to i, and 2i + 1 to i + D / 2. If `halves` is false,
    moves them back."""
    order = torch.arange(sizes.head_dim).view(-1, 2).T.flatten()  # 0, 2, 4, ..., 1, 3, 5, ...
    order = order if halves else order.argsort()
    rotated = (sizes.heads + sizes.kv_heads) * sizes.head_dim
    for kind in ("weight", "bias"):
        name = f"{prefix}qkv.{kind}"
        if name in weights:
            rows, values = weights[name].tensor_split([rotated])
            moved = rows.unflatten(0, (-1, sizes.head_dim))[:, order].flatten(0, 1)
            weights[name] = torch.cat([moved, values])
    for name in (f"{prefix}q_norm.weight", f"{prefix}k_norm.weight"):
        if name in weights:
            weights[name] = weights[name][order]
