"""What the residual stream, and each of its terms, says about the next token.

Shapes: B batch, L layers, H heads, T tokens, C embed_dim, V vocab_size.

The logit lens (nostalgebraist 2020) applies the final norm and the output head to the residual
stream after every layer. Direct logit attribution (Elhage 2021) divides a logit among the terms
whose sum is the stream. For this, the scale of the final norm is kept fixed, which makes the logits
a linear function of the stream.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headscope.analysis.head_outputs import output_matrices
from headscope.nn import GPT
from headscope.nn.norm import HeadNorm


def is_scaling(norm: nn.Module) -> bool:
    """Whether a norm multiplies each vector by a number and a matrix. The user's norm may not."""
    kinds = (nn.LayerNorm, nn.RMSNorm, HeadNorm, nn.Identity)
    return type(norm).forward in [kind.forward for kind in kinds]


def norm_scale(norm: nn.Module, x: Tensor) -> Tensor:
    """The number (..., 1) by which `norm` multiplies x (..., C). NaN if there is no such number."""
    if not is_scaling(norm):
        return torch.full_like(x[..., :1], torch.nan)
    if isinstance(norm, nn.LayerNorm):
        return (x.var(dim=-1, correction=0, keepdim=True) + norm.eps).rsqrt()
    if isinstance(norm, nn.RMSNorm):
        eps = torch.finfo(x.dtype).eps if norm.eps is None else norm.eps
        return (x.square().mean(dim=-1, keepdim=True) + eps).rsqrt()
    return torch.ones_like(x[..., :1])


def fold_norm(norm: nn.Module, matrix: Tensor) -> Tensor:
    """The matrix (..., C) that maps x to what `matrix` maps the normalized x to, except for the
    scale and the bias of the norm. It contains the gain, and LayerNorm's subtraction of the mean.
    """
    gain = getattr(norm, "weight", None)
    matrix = matrix if gain is None else matrix * gain
    if isinstance(norm, nn.LayerNorm):
        matrix = matrix - matrix.mean(dim=-1, keepdim=True)
    return matrix


def fold_into(norm: nn.Module, x: Tensor) -> Tensor:
    """The vectors (..., C) whose products with the rows of a matrix are those of x (..., C) with
    the rows of its `fold_norm`. For few vectors and a large matrix, this is faster."""
    if isinstance(norm, nn.LayerNorm):
        x = x - x.mean(dim=-1, keepdim=True)
    gain = getattr(norm, "weight", None)
    return x if gain is None else x * gain


def push_directions(model: GPT, tokens: Tensor | slice) -> Tensor:
    """The vectors (..., C) whose product with a term of the residual stream, times `norm_scale`, is
    the *push* of this term on each of `tokens` (...). The push is how much a term changes a logit,
    minus its mean change of all logits, which changes no probability."""
    weight = model.head.weight
    return fold_norm(model.norm, weight[tokens] - weight.mean(dim=0))


@torch.no_grad()
def direct_effects(model: GPT, tokens: Tensor, final: Tensor, outputs: Sequence[Tensor]) -> Tensor:
    """The mean push (L, H) of each head on the token that follows in tokens (N, T). `final`
    (N, T, C) is the output of the last block, and `outputs` (N, T, H, D) of each layer are those of
    the heads before the output projection. Zero if T is 1."""
    scale = norm_scale(model.norm, final[:, :-1])
    direction = push_directions(model, tokens[:, 1:]) * scale  # (N, T - 1, C)
    effects = []
    for attention, of_heads in zip(model.attentions, outputs, strict=True):
        per_head = torch.einsum("ntc,hcd->nthd", direction, output_matrices(attention))
        effects.append((per_head * of_heads[:, :-1]).sum(dim=(0, 1, 3)))
    return torch.stack(effects) / max(1, tokens[:, 1:].numel())


@dataclass(frozen=True)
class HeadWrites:
    """What a head writes at one token: the tokens whose logits it raises and lowers most directly,
    with its pushes, and its copying score (see `copying_scores`). The score is NaN for an attention
    of the user without matrices."""

    raised: list[tuple[str, float]]
    lowered: list[tuple[str, float]]
    copying_score: float
