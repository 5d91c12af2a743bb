"""Reading the attention weights of a model that runs on the fused path.

Shapes: B batch, L layers, H heads, T tokens.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from headscope.nn.attention import HeadOutputs, MultiHeadAttention
from headscope.nn.gpt import GPT


@contextmanager
def explained_attention(model: nn.Module, look: Callable[[HeadOutputs], None]) -> Iterator[None]:
    """Inside, `look` gets outputs, weights and scores of every attention of `model`, layer by layer
    and call by call, without gradients.

    A forward hook computes them a second time, explicitly, from what the layer was called with. The
    model itself runs as it always does: its outputs are the same bit for bit.
    """

    @torch.no_grad()
    def explain(layer: MultiHeadAttention, args: Any, options: dict[str, Any], output: Any) -> None:
        look(layer.compute_heads(*args, **{k: v for k, v in options.items() if k != "weights"}))

    layers = [module for module in model.modules() if isinstance(module, MultiHeadAttention)]
    hooks = [layer.register_forward_hook(explain, with_kwargs=True) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def captured_attention(model: nn.Module) -> Iterator[list[Tensor]]:
    """Inside, the weights (B, H, T, T) of every attention of `model` are appended to the list,
    layer by layer and call by call."""
    captured: list[Tensor] = []

    def keep_weights(computed: HeadOutputs) -> None:
        assert computed.weights is not None  # the explicit path has them
        captured.append(computed.weights)

    with explained_attention(model, keep_weights):
        yield captured


@torch.no_grad()
def attention_weights(model: GPT, tokens: Tensor) -> Tensor:
    """The weights (L, B, H, T, T) with which `model` reads `tokens` (B, T), without dropout."""
    with evaluating(model), captured_attention(model) as captured:
        # Past a compiled graph, which calls no hooks.
        model.hidden(tokens)
    return torch.stack(captured)


@torch.no_grad()
def attention_weights_and_scores(model: GPT, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Weights and raw scores, (L, B, H, T, T) each, with which `model` reads `tokens` (B, T).

    Scores are scaled and have the position's bias; they are those before the causal mask, so that
    they also say how well a query fits the keys that come later. Softmax of the masked scores is
    the weights.
    """
    captured: list[HeadOutputs] = []
    with evaluating(model), explained_attention(model, captured.append):
        model.hidden(tokens)
    _, weights, scores = zip(*captured, strict=True)
    return torch.stack(weights), torch.stack(scores)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Inside, the model is in evaluation mode; afterwards in the mode it was in."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
