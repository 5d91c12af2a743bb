"""What attention costs alone: the time and parameters of every variant, at several shapes.

Shapes: B batch, T tokens, C embed_dim, H heads.
"""

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from headscope.benchmarks.timing import machine, ratios, spread
from headscope.errors import UserError
from headscope.nn import AdditiveAttention, MultiHeadAttention
from headscope.training.bare_loop import wait_for

REFERENCE = "multi_head"
WARMUP_ROUNDS = 3


@dataclass(frozen=True)
class Shape:
    """Sizes to time at. Raises UserError when they do not fit together."""

    tokens: int
    embed_dim: int
    heads: int

    def __post_init__(self) -> None:
        if min(self.tokens, self.embed_dim, self.heads) < 1 or self.embed_dim % self.heads:
            raise UserError(
                f"suite.shapes=[[{self.tokens},{self.embed_dim},{self.heads}]]: tokens, embed_dim "
                "and heads must each be at least 1, and heads divide embed_dim"
            )

    def __str__(self) -> str:
        return f"{self.tokens:,} tokens, embed_dim {self.embed_dim:,}, heads {self.heads}"


@dataclass(frozen=True)
class Variant:
    """An attention to be timed; `make` takes embed_dim, heads, kv_heads and block_size.

    `heads` are those that it has at any shape. Where `kv_heads` do not divide the heads of a shape,
    it has as many as divide both. `explicit` is the path that returns the weights.
    """

    name: str
    make: Callable[..., MultiHeadAttention]
    heads: int | None = None
    kv_heads: int | None = None
    explicit: bool = False

    def layer(self, shape: Shape) -> MultiHeadAttention:
        heads = self.heads or shape.heads
        return self.make(
            embed_dim=shape.embed_dim,
            heads=heads,
            kv_heads=self.kv_heads and math.gcd(self.kv_heads, heads),
            block_size=shape.tokens,
        )

    def label(self, layer: MultiHeadAttention) -> str:
        shared = f", kv_heads={layer.kv_heads}" if self.kv_heads else ""
        return f"{self.name}{shared}{', explicit' if self.explicit else ''}"


def time_attentions(
    variants: list[Variant],
    *,
    shapes: list[Shape],
    batch_size: int,
    rounds: int,
    memory_gib: float,
    device: torch.device,
    console: Console,
) -> dict[str, Any]:
    """Milliseconds of one forward and backward pass of every variant at every shape, of one forward
    pass alone, and the ratios to `REFERENCE` in the same round: medians and spread over the rounds.

    A variant that would need more than `memory_gib` at a shape is left out there and says why.

    Raises UserError at a shape where even the reference needs more.
    """
    for shape in shapes:
        needed = gib_needed(shape, batch_size)
        if needed > memory_gib:
            raise UserError(
                f"suite.shapes: {shape}, with suite.batch_size={batch_size}, needs about "
                f"{needed:.1f} GiB; suite.memory_gib={memory_gib} allows no more"
            )
    results = []
    for number, shape in enumerate(shapes):
        console.print(f"{number + 1} of {len(shapes)}: {shape}", highlight=False)
        rows = time_shape(
            variants,
            shape,
            batch_size=batch_size,
            rounds=rounds,
            memory_gib=memory_gib,
            device=device,
        )
        results.append({**asdict(shape), "attentions": rows})
    return {
        **machine(device),
        "batch_size": batch_size,
        "rounds": rounds,
        "shapes": results,
    }


def time_shape(
    variants: list[Variant],
    shape: Shape,
    *,
    batch_size: int,
    rounds: int,
    memory_gib: float,
    device: torch.device,
) -> list[dict[str, Any]]:
    """A row for each variant. All take one turn in each round, so that a machine that slows down
    slows all alike."""
    rows: list[dict[str, Any]] = []
    timed: dict[str, tuple[MultiHeadAttention, bool]] = {}
    for variant in variants:
        with device:
            layer = variant.layer(shape)
        label = variant.label(layer)
        needed = gib_needed(shape, batch_size, per_pair=numbers_per_pair(layer, variant.explicit))
        row: dict[str, Any] = {
            "attention": label,
            "parameters": sum(p.numel() for p in layer.parameters()),
            "cache_numbers_per_token": 2 * layer.kv_heads * layer.head_dim,
        }
        if needed > memory_gib:
            row["timer_paused"] = f"needs about {needed:.0f} GiB; suite.memory_gib={memory_gib}"
        else:
            timed[label] = (layer, variant.explicit)
        rows.append(row)

    size = (batch_size, shape.tokens, shape.embed_dim)
    x = torch.randn(size, device=device, requires_grad=True)
    gradient = torch.randn(size, device=device)
    both: dict[str, list[float]] = {label: [] for label in timed}
    forward: dict[str, list[float]] = {label: [] for label in timed}
    for number in range(-WARMUP_ROUNDS, rounds):
        for label, (layer, explicit) in timed.items():
            ms = milliseconds(layer, x, gradient, explicit=explicit)
            forward_ms = forward_milliseconds(layer, x, explicit=explicit)
            if number >= 0:
                both[label].append(ms)
                forward[label].append(forward_ms)

    for row in rows:
        label = row["attention"]
        if label in timed:
            row |= {
                "milliseconds": spread(both[label]),
                "ratio": ratios(both[label], both[REFERENCE]),
                "forward_milliseconds": spread(forward[label]),
                "forward_ratio": ratios(forward[label], forward[REFERENCE]),
            }
    return rows


def milliseconds(
    layer: MultiHeadAttention, x: Tensor, gradient: Tensor, *, explicit: bool
) -> float:
    """Of one pass of x (B, T, C) forward, and of the gradient of its output (B, T, C) backward to
    x and to the weights."""
    wait_for(x.device)
    started = time.perf_counter()
    out = layer(x, weights=explicit)
    (out[0] if explicit else out).backward(gradient)
    wait_for(x.device)
    passed = time.perf_counter() - started
    layer.zero_grad()
    x.grad = None
    return 1e3 * passed


@torch.no_grad()
def forward_milliseconds(layer: MultiHeadAttention, x: Tensor, *, explicit: bool) -> float:
    """Of one pass of x (B, T, C) forward that keeps nothing for gradients, as in sampling."""
    wait_for(x.device)
    started = time.perf_counter()
    layer(x, weights=explicit)
    wait_for(x.device)
    return 1e3 * (time.perf_counter() - started)


def numbers_per_pair(layer: MultiHeadAttention, explicit: bool) -> int:
    """About how many numbers are held at once for each pair of tokens, (B, T, T); measured."""
    if isinstance(layer, AdditiveAttention):
        return 4 * layer.heads * layer.head_dim
    return 6 * layer.heads if explicit else 0  # the fused kernel keeps none


def gib_needed(shape: Shape, batch_size: int, *, per_pair: int = 0) -> float:
    """About what is held at the peak: all variants' weights and masks, one's activations."""
    tokens, width = shape.tokens, shape.embed_dim
    numbers = 32 * width**2 + 2 * tokens**2 + 16 * batch_size * tokens * width
    return 4 * (numbers + per_pair * batch_size * tokens**2) / 2**30


def report(figures: dict[str, Any], console: Console) -> None:
    """A table for each shape."""
    for shape in figures["shapes"]:
        sizes = Shape(shape["tokens"], shape["embed_dim"], shape["heads"])
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column("attention", no_wrap=True)
        for name in ("parameters", "cache", "ms", "ratio", "forward", "ratio"):
            table.add_column(name, justify="right", no_wrap=True)
        for row in shape["attentions"]:
            cells = ["-"] * 4
            if "timer_paused" not in row:
                cells = [
                    f"{row['milliseconds']['median']:,.2f}",
                    f"{row['ratio']['median']:.2f}",
                    f"{row['forward_milliseconds']['median']:,.2f}",
                    f"{row['forward_ratio']['median']:.2f}",
                ]
            cache = f"{row['cache_numbers_per_token']:,}"
            table.add_row(row["attention"], f"{row['parameters']:,}", cache, *cells)
        console.print(f"\n{sizes}", style="bold", highlight=False)
        console.print(table)
        for row in shape["attentions"]:
            if "timer_paused" in row:
                console.print(f"{row['attention']}: {row['timer_paused']}", highlight=False)
    console.print(
        "\ncache: numbers that a key-value cache keeps for every token. ms: forward and backward; "
        f"forward: ms of the forward pass alone, without gradients; medians of {figures['rounds']} "
        f"rounds. ratio: to {REFERENCE} in the same round. explicit: every step by itself, weights "
        "returned, without the fused kernel.",
        highlight=False,
        soft_wrap=True,
    )
