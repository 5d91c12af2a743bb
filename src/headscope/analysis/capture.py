"""Reading the attention weights of a model that runs on the fused path.

Shapes: B batch, L layers, H heads, T tokens.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from headscope.nn import GPT, MultiHeadAttention
from headscope.nn.attention import attend_explicit


@contextmanager
def captured_attention(model: nn.Module) -> Iterator[list[Tensor]]:
    """Inside, every attention of `model` runs explicitly and its weights (B, H, T, T) are appended
    to the list, in order of layer; afterwards it runs as before, whatever happened between."""
    captured: list[Tensor] = []

    def attend(*args: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
        mixed, weights = attend_explicit(*args, **options)
        captured.append(weights.detach())
        return mixed, weights

    layers = [module for module in model.modules() if isinstance(module, MultiHeadAttention)]
    before = [layer.attend for layer in layers]
    try:
        for layer in layers:
            layer.attend = attend
        yield captured
    finally:
        for layer, function in zip(layers, before, strict=True):
            layer.attend = function


@torch.no_grad()
def attention_weights(model: GPT, tokens: Tensor) -> Tensor:
    """The weights (L, B, H, T, T) with which `model` reads `tokens` (B, T), without dropout."""
    training = model.training
    model.eval()
    try:
        with captured_attention(model) as captured:
            model.forward(tokens)  # not through a compiled graph, which knows the fused path alone
    finally:
        model.train(training)
    return torch.stack(captured)
