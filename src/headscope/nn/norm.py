"""Normalizations over the last axis."""

from torch import Tensor, nn


def layer_norm(*, embed_dim: int, bias: bool = False) -> nn.Module:
    """Mean 0 and variance 1, then a gain for each number and, with `bias`, a shift (Ba 2016)."""
    return nn.LayerNorm(embed_dim, bias=bias)


def rms_norm(*, embed_dim: int, bias: bool = False, gain: bool = True) -> nn.Module:
    """Root mean square 1, then a gain for each number unless `gain` is false (Zhang 2019). It has
    no shift: `bias` changes nothing."""
    return nn.RMSNorm(embed_dim, elementwise_affine=gain)


class HeadNorm(nn.RMSNorm):
    """RMSNorm of the queries or keys of a head, with a gain for each of the D numbers. Computed in
    the dtype of its gains; the result has that of the input."""

    def __init__(self, head_dim: int) -> None:
        super().__init__(head_dim, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self.weight.dtype)).to(x.dtype)
