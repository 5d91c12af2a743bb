"""Reading the attention weights of a model that runs on the fused path.

Shapes: B batch, L layers, H heads, T tokens.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from headscope.nn import GPT, Attention


@contextmanager
def captured_attention(model: nn.Module) -> Iterator[list[Tensor]]:
    """Inside, every attention of `model` runs explicitly and its weights (B, H, T, T) are appended
    to the list, in order of layer; afterwards it runs as before, whatever happened between."""
    captured: list[Tensor] = []
    layers = [module for module in model.modules() if isinstance(module, Attention)]
    own = [vars(layer).get("forward") for layer in layers]  # None: that of its class

    def watched(forward: Callable[..., Any]) -> Callable[..., Any]:
        def attend(*args: Any, weights: bool = False, **options: Any) -> Any:
            mixed, seen = forward(*args, weights=True, **options)
            captured.append(seen.detach())
            return (mixed, seen) if weights else mixed

        return attend

    try:
        for layer in layers:
            vars(layer)["forward"] = watched(layer.forward)
        yield captured
    finally:
        for layer, forward in zip(layers, own, strict=True):
            del vars(layer)["forward"]
            if forward is not None:
                vars(layer)["forward"] = forward


@torch.no_grad()
def attention_weights(model: GPT, tokens: Tensor) -> Tensor:
    """The weights (L, B, H, T, T) with which `model` reads `tokens` (B, T), without dropout."""
    training = model.training
    model.eval()
    try:
        with captured_attention(model) as captured:
            # Not through a compiled graph, which knows the fused path alone.
            model.hidden(tokens)
    finally:
        model.train(training)
    return torch.stack(captured)
