"""Normalization layers over the last axis."""

from torch import Tensor, nn

from headscope.nn.checks import check_positive


class LayerNorm(nn.LayerNorm):
    """LayerNorm (Ba 2016) normalizes the input to mean 0 and variance 1. Then it applies a learned
    gain and, with `bias`, a learned shift for each dimension. `eps` is added to the variance."""

    def __init__(self, embed_dim: int, *, eps: float = 1e-5, bias: bool = False) -> None:
        check_positive(eps=eps)
        super().__init__(embed_dim, eps=eps, bias=bias)


class RMSNorm(nn.RMSNorm):
    """RMSNorm (Zhang 2019) normalizes the input to root mean square 1. With `gain`, it then applies
    a learned gain for each dimension. RMSNorm has no shift, so `bias` has no effect. `eps` is added
    to the mean square."""

    def __init__(
        self, embed_dim: int, *, eps: float = 2.0**-23, bias: bool = False, gain: bool = True
    ) -> None:
        check_positive(eps=eps)
        super().__init__(embed_dim, eps=eps, elementwise_affine=gain)


class NoNorm(nn.Identity):
    """No normalization: the output is the input. For models in which everything except the
    attention weights is linear (Elhage 2021). `bias` has no effect."""

    def __init__(self, embed_dim: int, *, bias: bool = False) -> None:
        super().__init__()


class HeadNorm(nn.RMSNorm):
    """RMSNorm of queries or keys, with a learned gain for each of the D dimensions of a head. It is
    computed in the dtype of the gains. The result has the dtype of the input."""

    def __init__(self, head_dim: int) -> None:
        super().__init__(head_dim, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self.weight.dtype)).to(x.dtype)
