"""Layers of every attention that conf/ offers, with all that they are called with."""

import itertools

import pytest
import torch
from choices import ATTENTIONS, HEADS, POSITIONS
from torch import Tensor, nn

from headscope.nn import Position, mask_from_padding, mask_per_sequence

WIDTH, BLOCK, BATCH = 24, 9, 2
IN_ATTENTION = [  # the encodings that act there
    name
    for name, position in POSITIONS.items()
    if position.rotate is not Position.rotate or position.bias is not Position.bias
]
PAIRS = [(name, position) for name in ATTENTIONS for position in (None, *IN_ATTENTION)]
MASKS = ["queries_keys", "padding", "per_sequence", "per_head"]

EACH = [
    *((name, None) for name in ATTENTIONS),
    *zip(ATTENTIONS, itertools.cycle(reversed(IN_ATTENTION)), strict=False),
]

every_attention = pytest.mark.parametrize("name", ATTENTIONS)
every_pair = pytest.mark.parametrize(
    ("name", "position"),
    [pytest.param(*pair, marks=[pytest.mark.slow] * (pair not in EACH)) for pair in PAIRS],
)


def far_from_zero(module: nn.Module) -> nn.Module:
    """With fresh weights attention is nearly even, and hides many a mistake."""
    generator = torch.Generator().manual_seed(0)  # torch.manual_seed is far slower
    for key, parameter in module.named_parameters():
        mean = 1.0 if key.endswith("norm.weight") else 0.0
        nn.init.normal_(parameter, mean, 0.3, generator=generator)
    return module


def attention(name: str, **options):
    sizes = {"embed_dim": WIDTH, "heads": 6, "block_size": BLOCK} | HEADS.get(name, {})
    return far_from_zero(ATTENTIONS[name](**(sizes | options)))


def encoding(name: str | None, layer, **options):
    """The position encoding of this name for `layer`; None for None."""
    sizes = {"embed_dim": WIDTH, "block_size": BLOCK}
    sizes |= {"heads": layer.heads, "head_dim": layer.head_dim}
    return name and far_from_zero(POSITIONS[name](**(sizes | options)))


def some_input(length: int = BLOCK, *, seed: int = 0, batch: int = BATCH) -> Tensor:
    return torch.randn(batch, length, WIDTH, generator=torch.Generator().manual_seed(seed))


def some_mask(kind: str, heads: int, queries: int = BLOCK, keys: int = BLOCK) -> Tensor:
    """Six tenths of the pairs, and the first key, which no causal mask hides, for all."""

    def draw(*shape: int) -> Tensor:
        drawn = torch.rand(shape, generator=torch.Generator().manual_seed(2)) < 0.6
        drawn[..., 0] = True
        return drawn

    if kind == "queries_keys":
        return draw(queries, keys)
    if kind == "padding":
        return mask_from_padding(draw(BATCH, keys))
    if kind == "per_sequence":
        return mask_per_sequence(draw(BATCH, queries, keys))
    return draw(BATCH, heads, queries, keys)


def past(queries: int, keys: int | None = None) -> Tensor:
    """The causal mask (T, S), by its definition: query t stands at key S - T + t."""
    keys = queries if keys is None else keys
    return torch.tensor(
        [[key <= keys - queries + query for key in range(keys)] for query in range(queries)]
    )


def by_path(layer, *inputs: Tensor, weights: bool, **options) -> Tensor:
    """The output alone, on the path that is asked for."""
    out = layer(*inputs, weights=weights, **options)
    return out[0] if weights else out
