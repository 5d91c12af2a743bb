"""Captures attention weights, which the fused kernels do not return.

Shapes: B batch, L layers, H heads, T tokens.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from headscope.nn.attention import MultiHeadAttention
from headscope.nn.dot_product import HeadOutputs
from headscope.nn.gpt import GPT


@contextmanager
def observed_attention(model: nn.Module, observe: Callable[[HeadOutputs], None]) -> Iterator[None]:
    """Inside this `with` block, every call of an attention layer also calls `observe` with the
    outputs, weights and scores of the heads. A forward hook computes them a second time, on the
    explicit path and without gradients. The model's own outputs stay bit-identical."""

    @torch.no_grad()
    def hook(layer: MultiHeadAttention, args: Any, options: dict[str, Any], output: Any) -> None:
        observe(layer.compute_heads(*args, **{k: v for k, v in options.items() if k != "weights"}))

    layers = [module for module in model.modules() if isinstance(module, MultiHeadAttention)]
    handles = [layer.register_forward_hook(hook, with_kwargs=True) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def captured_attention(model: nn.Module) -> Iterator[list[Tensor]]:
    """Inside this `with` block, every call of an attention layer appends its weights (B, H, T, T)
    to the yielded list."""
    captured: list[Tensor] = []

    def append_weights(computed: HeadOutputs) -> None:
        assert computed.weights is not None  # the explicit path returns them
        captured.append(computed.weights)

    with observed_attention(model, append_weights):
        yield captured


def attention_weights(model: GPT, tokens: Tensor) -> Tensor:
    """The attention weights (L, B, H, T, T) of `model` on `tokens` (B, T), without dropout."""
    return hidden_and_weights(model, tokens)[1]


@torch.no_grad()
def hidden_and_weights(model: GPT, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """The output of the last block (B, T, C), and the attention weights (L, B, H, T, T), without
    dropout. This is faster than `captured_attention`, which computes both paths."""
    captured = []
    with evaluating(model):
        x, mask = model.embed(tokens), model.document_mask(tokens)
        for block in model.blocks:
            attended, weights = block.attention(
                block.attention_norm(x), position=model.position, mask=mask, weights=True
            )
            captured.append(weights)
            x = block.feed(x + attended)
    return x, torch.stack(captured)


@torch.no_grad()
def attention_weights_and_scores(model: GPT, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """The attention weights and raw scores (L, B, H, T, T) of `model` on `tokens` (B, T).

    The scores are scaled and include the position's bias, but no mask. So they also show how well a
    query matches later keys. The weights are the softmax of the masked scores.
    """
    captured: list[HeadOutputs] = []
    with evaluating(model), observed_attention(model, captured.append):
        model.hidden(tokens)
    _, weights, scores = zip(*captured, strict=True)
    return torch.stack(weights), torch.stack(scores)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Inside this `with` block, the model is in evaluation mode."""
    if not model.training:  # setting the mode visits every module
        yield
        return
    model.eval()
    try:
        yield
    finally:
        model.train()
