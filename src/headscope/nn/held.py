"""Holds the outputs of heads and of feed-forward networks at fixed values (Singh 2024: "clamping").

Shapes: H heads, D head_dim, W the width of an output: H D for heads, C for a network.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from headscope.nn.gpt import GPT

HELD = re.compile(
    r"(?:model\.)?blocks\.(\d{1,5})\.(attention\.out_proj|feed_forward)\.held\.(mask|values)"
)
"""The names of the buffers in a state dict: the number of the layer, the part and the buffer."""


class Held(nn.Module):
    """Replaces an output x (..., W) by `values` (W,) where `mask` (W,) is 1, also in the backward
    pass: what is held gets a gradient of zero. As long as the mask is 0, the result is x.

    Both are buffers of the model, so its checkpoints contain what was held when they were saved.
    """

    mask: Tensor
    values: Tensor

    def __init__(self, width: int, device: torch.device) -> None:
        super().__init__()
        self.register_buffer("mask", torch.zeros(width, device=device))
        self.register_buffer("values", torch.zeros(width, device=device))

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(self.mask > 0, self.values.to(x.dtype), x)


def add_hold(model: GPT, layer: int, part: str) -> Held:
    """Adds what can hold the outputs of the heads of a layer, if `part` is "attention.out_proj", or
    that of its feed-forward network, if it is "feed_forward", unless it was added before. Nothing
    is held until the mask is changed. This must be done before the model is compiled."""
    block: Any = model.blocks[layer]
    module = block.get_submodule(part)
    if not hasattr(module, "held"):
        if part == "feed_forward":
            module.held = Held(model.embedding.embedding_dim, model.device)
            module.register_forward_hook(lambda own, inputs, output: own.held(output))
        else:
            module.held = Held(block.attention.heads * block.attention.head_dim, model.device)
            module.register_forward_pre_hook(lambda own, inputs: own.held(inputs[0]))
    return module.held


def held_heads(model: GPT) -> list[bool]:
    """Whether the output of each head is held now, layer by layer."""
    flags: list[bool] = []
    for attention in model.attentions:
        held: Any = getattr(attention.out_proj, "held", None)
        mask = torch.zeros(attention.heads, 1) if held is None else held.mask
        flags += (mask.view(attention.heads, -1) > 0).any(dim=1).tolist()
    return flags


def without_held(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state dict of a model, without the buffers of what is held."""
    return {name: weight for name, weight in weights.items() if not HELD.fullmatch(name)}


def restore_held(model: GPT, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Prepares `model` to load a state dict. Returns it without buffers where nothing is held."""
    kept = without_held(weights)
    for name, mask in weights.items():
        place = HELD.fullmatch(name)
        if place and place[3] == "mask" and mask.any():
            with suppress(AttributeError, IndexError):  # no such layer or part: loading fails
                add_hold(model, int(place[1]), place[2])
            buffers = (name, f"{name.removesuffix('mask')}values")
            kept |= {each: weights[each] for each in buffers if each in weights}
    return kept
