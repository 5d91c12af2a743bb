"""Normalizations of what a token carries, over its C numbers."""

from torch import nn


def layer_norm(*, embed_dim: int, bias: bool = False) -> nn.Module:
    """Mean 0 and variance 1, then a gain for each number and, with `bias`, a shift (Ba 2016)."""
    return nn.LayerNorm(embed_dim, bias=bias)


def rms_norm(*, embed_dim: int, bias: bool = False, gain: bool = True) -> nn.Module:
    """Root mean square 1, then a gain for each number unless `gain` is false (Zhang 2019). It has
    no shift: `bias` changes nothing."""
    return nn.RMSNorm(embed_dim, elementwise_affine=gain)
