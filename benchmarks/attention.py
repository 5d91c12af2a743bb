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
from headscope.cli.conf import choices_of
from headscope.config.parse import Positive
from headscope.config.parts import build_part
from headscope.nn import MultiHeadAttention

REFERENCE = "multi_head"
WARMUP_ROUNDS = 3


def measure(
    request: Request, rounds: Positive, shapes: list[runner.Shape], batch_size: Positive
) -> Result:
    """Measures the milliseconds of one forward and backward pass of every attention layer, with its
    default settings. Raises UserError when a shape is impossible."""
    title = "{:,} tokens, embed_dim {:,}, heads {}"
    return Result(
        f"Time of one attention layer, forward and backward, {batch_size} sequences, float32",
        {title.format(*shape): time_shape(*shape, request, rounds, batch_size) for shape in shapes},
        f"Milliseconds: one forward and backward pass, median of {rounds} rounds. Ratio: to "
        f"{REFERENCE} in the same round. Explicit: the path that returns the attention weights, "
        "without the fused kernel.",
        f"ms, x: ratio to {REFERENCE}",
        "milliseconds",
    )


def time_shape(
    tokens: int, embed_dim: int, all_heads: int, request: Request, rounds: int, batch_size: int
) -> list[dict[str, Any]]:
    """One row for each attention layer, and one more for multi_head on the explicit path, where it
    also returns the attention weights."""
    x = torch.randn(batch_size, tokens, embed_dim, device=request.device)
    x.requires_grad_()
    sides: dict[str, Callable[[], Figures]] = {}
    for name in choices_of("model/attention"):
        model = request.compose("model/gpt", [f"model/attention={name}"], key="model")
        heads = 1 if model.heads == 1 else all_heads  # single_head
        kv_heads = model.kv_heads and math.gcd(model.kv_heads, heads)
        sizes = {"embed_dim": embed_dim, "heads": heads, "kv_heads": kv_heads}
        biases = {"qkv_bias": model.qkv_bias, "out_bias": model.bias}
        make = build_part(model.attention, "model/attention")
        layer = make(**sizes, **biases, block_size=tokens)
        side = f"{name}, kv_heads={kv_heads}" if layer.kv_heads < heads else name
        sides[side] = partial(turn, layer.to(request.device), x, explicit=False)
        if name == REFERENCE:
            sides[f"{name}, explicit"] = partial(turn, layer, x, explicit=True)
    for side_turn in [*sides.values()] * WARMUP_ROUNDS:
        side_turn()
    return runner.compared(sides, rounds, ratio_of="milliseconds", reference=REFERENCE)


def turn(layer: MultiHeadAttention, x: Tensor, explicit: bool) -> Figures:
    """Milliseconds of one forward and one backward pass of `layer` for the input `x` (B, T, C).
    With `explicit`, the layer also returns its attention weights."""
    gradient = torch.ones_like(x)

    def both() -> None:
        out = layer(x, weights=explicit)
        (out[0] if explicit else out).backward(gradient)

    seconds = runner.seconds_of(both)
    layer.zero_grad()
    x.grad = None
    return {"milliseconds": 1e3 * seconds}
