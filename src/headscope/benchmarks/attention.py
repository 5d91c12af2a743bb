"""The cost of attention alone: time and parameters of every kind, at several shapes.

Shapes: B batch, T tokens, C embed_dim.
"""

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from headscope.benchmarks.runner import Figures, Request, Result, seconds_of, summarize
from headscope.benchmarks.show import Bars
from headscope.config import SCHEMAS, build_part
from headscope.config.model import ModelConfig
from headscope.errors import UserError
from headscope.nn import AdditiveAttention, MultiHeadAttention
from headscope.training.check import check

REFERENCE = "multi_head"
WARMUP_ROUNDS = 3
OF_MODEL = ("model.attention.", "model.dropout=", "model.bias=", "model.qkv_bias=")
"""Beginnings of the overrides of the model that this suite takes."""

PARTS = {"milliseconds": "forward and backward", "forward_milliseconds": "forward alone"}
WORDS = (
    "{milliseconds[median]:,.2f} ms, {milliseconds[ratio][median]:.2f}x; "
    "forward {forward_milliseconds[median]:,.2f} ms; {parameters:,} parameters"
)


def measure(request: Request) -> Result:
    """Milliseconds of one forward and backward pass of every attention at every shape, and of one
    forward pass alone. One that would need more than `suite.memory_gib` is skipped.

    Raises UserError for sizes that do not fit together, or fit no memory.
    """
    plan, models = request.suite, choices(request)
    check(request.run)
    for shape in plan.shapes or [[]]:
        if len(shape) != 3 or min(shape) < 1 or shape[1] % shape[2]:
            raise UserError(
                f"suite.shapes={plan.shapes} must hold at least one [tokens, embed_dim, heads], "
                f"each number at least 1, with heads dividing embed_dim; {shape} is not one"
            )
        if (needed := gib_needed(shape, plan.batch_size)) > plan.memory_gib:
            raise UserError(
                f"suite.memory_gib={plan.memory_gib}: {shape} of suite.shapes needs about "
                f"{needed:.1f} GiB with suite.batch_size={plan.batch_size}; choose smaller ones"
            )
    groups: dict[str, list[dict[str, Any]]] = {}
    panels, skipped = [], ""
    for shape in plan.shapes:
        title = "{:,} tokens, embed_dim {:,}, heads {}".format(*shape)
        rows = groups[title] = time_shape(models, shape, request)
        timed = [row for row in rows if "skipped" not in row]
        skipped += "".join(f"{row['side']}: {row['skipped']}\n" for row in rows if row not in timed)
        panels.append(Bars(title, "ms", timed, PARTS, WORDS, [REFERENCE], nested=True))
    how = f"medians of {plan.rounds} rounds; ratio (x): to {REFERENCE} in the same round"
    explicit = "explicit: the path that returns the weights, without the fused kernel"
    overrides = [word for word in request.words if word.startswith("model.")]
    return Result(
        groups,
        ["parameters", "cache_numbers", *PARTS],
        f"{skipped}cache numbers: per token in a key-value cache. milliseconds: forward and "
        f"backward; forward: alone, without gradients; {how}. {explicit}.",
        f"Time and parameters of one attention layer, {plan.batch_size} sequences, float32\n"
        f"{how}; {', '.join([explicit, *overrides])}",
        panels,
    )


def choices(request: Request) -> dict[str, ModelConfig]:
    """Every choice of model/attention with the overrides of the command line."""
    words = [word for word in request.words if not word.startswith(("suite", "output="))]
    for word in words:
        if not word.startswith(OF_MODEL):
            raise UserError(
                f"{word}: suite=attention times every choice of model/attention alone, at "
                "suite.shapes; of model it takes attention.*, dropout, bias and qkv_bias"
            )
    found = {}
    for name in SCHEMAS["attention"]:
        chosen = [*words, f"model/attention={name}"]
        found[name] = request.compose(ModelConfig, "model/gpt", chosen, key="model")
    return found


def time_shape(
    models: dict[str, ModelConfig], shape: list[int], request: Request
) -> list[dict[str, Any]]:
    """A row for each attention, and one for the reference on the path that returns the weights."""
    plan, rows, sides = request.suite, {}, {}
    tokens, embed_dim, heads = shape
    x = torch.randn(plan.batch_size, tokens, embed_dim, device=request.device, requires_grad=True)
    gradient = torch.randn_like(x)
    paths = [(name, False) for name in models]
    paths.insert(2, (REFERENCE, True))
    for name, explicit in paths:
        model = models[name]
        here = 1 if name == "single_head" else heads
        kv_heads = model.kv_heads and math.gcd(model.kv_heads, here)
        with request.device:
            sizes = {"heads": here, "kv_heads": kv_heads, "block_size": tokens}
            biases = {"qkv_bias": model.qkv_bias, "out_bias": model.bias}
            make = build_part(model.attention, dropout=model.dropout, **biases)
            layer = make(embed_dim=embed_dim, **sizes)
        name += f", kv_heads={layer.kv_heads}" if kv_heads else ""
        name += ", explicit" if explicit else ""
        parameters = sum(parameter.numel() for parameter in layer.parameters())
        row = {
            "side": name,
            "parameters": parameters,
            "cache_numbers": 2 * layer.kv_heads * layer.head_dim,
        }
        needed = gib_needed(shape, plan.batch_size, layer, explicit)
        if needed > plan.memory_gib:
            row["skipped"] = f"needs about {needed:.0f} GiB; suite.memory_gib={plan.memory_gib}"
        else:
            sides[name] = partial(turn, layer, x, gradient, explicit=explicit)
        rows[name] = row
    for side in [*sides.values()] * WARMUP_ROUNDS:
        side()
    for row in summarize(request.alternate(sides, plan.rounds), reference=REFERENCE):
        rows[row["side"]] |= row
    return list(rows.values())


def turn(layer: MultiHeadAttention, x: Tensor, gradient: Tensor, *, explicit: bool) -> Figures:
    """Milliseconds of a pass of x (B, T, C) forward, and of `gradient` (B, T, C) backward to x and
    to the weights; and of a forward pass without gradients, as in sampling."""

    def both() -> None:
        out = layer(x, weights=explicit)
        (out[0] if explicit else out).backward(gradient)

    milliseconds = 1e3 * seconds_of(both, x.device)
    layer.zero_grad()
    x.grad = None
    with torch.no_grad():
        forward = 1e3 * seconds_of(lambda: layer(x, weights=explicit), x.device)
    return {"milliseconds": milliseconds, "forward_milliseconds": forward}


def gib_needed(
    shape: list[int],
    batch_size: int,
    layer: MultiHeadAttention | None = None,
    explicit: bool = False,
) -> float:
    """About the peak: weights and masks of all attentions, activations of `layer`. Measured; the
    fused kernel keeps no number for each pair of tokens, (B, T, T)."""
    tokens, width, heads = shape
    additive = 4 * width if isinstance(layer, AdditiveAttention) else 0
    per_pair = additive or (6 * heads if explicit else 0)
    numbers = 32 * width**2 + 2 * tokens**2 + 16 * batch_size * tokens * width
    return 4 * (numbers + per_pair * batch_size * tokens**2) / 2**30
