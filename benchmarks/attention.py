"""Measures the time of a single attention layer, for every choice of model/attention and several
shapes.

Shapes: B batch, T tokens, C embed_dim.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks import runner
from benchmarks.runner import Figures, Request, Result
from headscope.config import SCHEMAS, build_part
from headscope.config.model import ModelConfig
from headscope.nn import MultiHeadAttention

REFERENCE = "multi_head"
EXPLICIT = f"{REFERENCE}, explicit"
WARMUP_ROUNDS = 3


def measure(request: Request) -> Result:
    """Measures the milliseconds of one forward and backward pass of every attention layer, with its
    default settings. Raises UserError when a shape is impossible."""
    plan = request.suite
    runner.check_shapes(plan.shapes, "tokens, embed_dim, heads")
    models = {
        name: request.compose(ModelConfig, "model/gpt", [f"model/attention={name}"], key="model")
        for name in SCHEMAS["attention"]
    }
    return Result(
        {
            "{:,} tokens, embed_dim {:,}, heads {}".format(*shape): time_shape(
                models, shape, request
            )
            for shape in plan.shapes
        },
        {
            "parameters": "parameters",
            "milliseconds": "milliseconds",
            "forward_milliseconds": "forward only",
        },
        "Milliseconds: one forward and backward pass. Forward only: one pass without gradients. "
        f"Median of {plan.rounds} rounds. Ratio: to {REFERENCE} in the same round. Explicit: the "
        "path that returns the attention weights, without the fused kernel.",
        f"Time of one attention layer, forward and backward, {plan.batch_size} sequences, float32",
        f"ms, x: ratio to {REFERENCE}",
        {"milliseconds": "milliseconds"},
    )


def time_shape(
    models: dict[str, ModelConfig], shape: list[int], request: Request
) -> list[dict[str, Any]]:
    """One row for each attention layer, and one more for multi_head on the explicit path, where it
    also returns the attention weights."""
    tokens, embed_dim, all_heads = shape
    x = torch.randn(request.suite.batch_size, tokens, embed_dim, device=request.device)
    x.requires_grad_()
    gradient = torch.randn_like(x)
    sides: dict[str, Callable[[], Figures]] = {}
    parameters: dict[str, int] = {}
    for name, model in models.items():
        heads = 1 if model.heads == 1 else all_heads  # single_head
        kv_heads = model.kv_heads and math.gcd(model.kv_heads, heads)
        biases = {"qkv_bias": model.qkv_bias, "out_bias": model.bias}
        make = build_part(model.attention, dropout=0.0, **biases)
        layer = make(embed_dim=embed_dim, heads=heads, kv_heads=kv_heads, block_size=tokens)
        side = f"{name}, kv_heads={kv_heads}" if layer.kv_heads < heads else name
        sides[side] = partial(turn, layer.to(request.device), x, gradient, explicit=False)
        parameters[side] = sum(parameter.numel() for parameter in layer.parameters())
        if name == REFERENCE:
            sides[EXPLICIT] = partial(turn, layer, x, gradient, explicit=True)
            parameters[EXPLICIT] = parameters[side]
    for side_turn in [*sides.values()] * WARMUP_ROUNDS:
        side_turn()
    measured = runner.alternate(sides, request.suite.rounds)
    rows = runner.summarize(measured, ratio_of="milliseconds", reference=REFERENCE)
    return [{**row, "parameters": parameters[row["side"]]} for row in rows]


def turn(layer: MultiHeadAttention, x: Tensor, gradient: Tensor, explicit: bool) -> Figures:
    """Milliseconds of one forward and one backward pass of `layer`, and of one forward pass without
    gradients. `x` (B, T, C) is the input of the layer, and `gradient` (B, T, C) is the gradient of
    its output. With `explicit`, the layer also returns its attention weights."""

    def both() -> None:
        out = layer(x, weights=explicit)
        (out[0] if explicit else out).backward(gradient)

    seconds = runner.seconds_of(both, x.device)
    layer.zero_grad()
    x.grad = None
    with torch.no_grad():
        forward = runner.seconds_of(lambda: layer(x, weights=explicit), x.device)
    return {"milliseconds": 1e3 * seconds, "forward_milliseconds": 1e3 * forward}
