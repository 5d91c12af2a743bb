"""Normalization layers over the last axis."""

from torch import Tensor, nn

from headscope.nn.checks import check_positive

FLOAT32_EPSILON = 2.0**-23
"""The distance from 1 to the next larger float32 number. PyTorch's default `eps` of RMSNorm."""


def layer_norm(*, embed_dim: int, eps: float = 1e-5, bias: bool = False) -> nn.Module:
    """LayerNorm (Ba 2016) normalizes the input to mean 0 and variance 1. Then it applies a learned
    gain and, with `bias`, a learned shift for each dimension. `eps` is added to the variance."""
    check_positive(eps=eps)
    return nn.LayerNorm(embed_dim, eps=eps, bias=bias)


def rms_norm(
    *, embed_dim: int, eps: float = FLOAT32_EPSILON, bias: bool = False, gain: bool = True
) -> nn.Module:
    """RMSNorm (Zhang 2019) normalizes the input to root mean square 1. With `gain`, it then applies
    a learned gain for each dimension. RMSNorm has no shift, so `bias` has no effect. `eps` is added
    to the mean square."""
    check_positive(eps=eps)
    return nn.RMSNorm(embed_dim, eps=eps, elementwise_affine=gain)


def no_norm(*, embed_dim: int, bias: bool = False) -> nn.Module:
    """No normalization: the output is the input. For models whose parts are all linear except for
    the attention weights (Elhage 2021). `bias` has no effect."""
    return nn.Identity()


class HeadNorm(nn.RMSNorm):
    """RMSNorm of queries or keys, with a learned gain for each of the D dimensions of a head. It is
    computed in the dtype of the gains. The result has the dtype of the input."""

    def __init__(self, head_dim: int) -> None:
        super().__init__(head_dim, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self.weight.dtype)).to(x.dtype)
