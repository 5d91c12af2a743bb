"""Functions that create the optimizer of a model."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headscope.errors import UserError
from headscope.nn import MultiHeadAttention
from headscope.training.muon import CombinedOptimizer, Muon


def adamw(
    model: nn.Module, *, lr: float, weight_decay: float, beta1: float, beta2: float
) -> CombinedOptimizer:
    """AdamW (Loshchilov 2019) with a fused kernel. Weight decay applies to matrices, but not to
    vectors (biases, and the gains of norms). Raises UserError if a value is out of range."""
    betas = checked(beta1, beta2, lr=lr, weight_decay=weight_decay)
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = by_decay(parameters, weight_decay)
    optimizer = torch.optim.AdamW(groups, lr=lr, betas=betas, fused=True)
    return CombinedOptimizer([optimizer], model)


def muon(
    model: nn.Module,
    *,
    lr: float,
    matrix_lr: float,
    momentum: float,
    weight_decay: float,
    beta1: float,
    beta2: float,
) -> CombinedOptimizer:
    """Muon (Jordan 2024) with the learning rate `matrix_lr` trains the matrices of the linear
    layers in the blocks. AdamW with the learning rate `lr` trains all other parameters: embeddings,
    output head, vectors, and stacks of vectors such as `AdditiveAttention.w`. Weight decay applies
    to parameters with at least two axes.

    A fused projection to queries, keys and values is orthogonalized as three separate matrices.
    Raises UserError if a value is out of range, or if the model has no blocks.
    """
    betas = checked(beta1, beta2, lr=lr, matrix_lr=matrix_lr, weight_decay=weight_decay)
    if not 0 <= momentum < 1:
        raise UserError(f"momentum={momentum} must be at least 0 and below 1")
    rows = {
        part.qkv.weight: tuple(part.widths)
        for part in model.modules()
        if isinstance(part, MultiHeadAttention) and hasattr(part, "qkv")
    }
    groups: dict[tuple[int, ...] | None, list[Tensor]] = {}
    for name, part in model.named_modules():
        if name.startswith("blocks.") and isinstance(part, nn.Linear) and part.weight.requires_grad:
            groups.setdefault(rows.get(part.weight), []).append(part.weight)
    if not groups:
        raise UserError("optimizer=muon needs a model with blocks to train: use optimizer=adamw")
    matrices = {matrix for group in groups.values() for matrix in group}
    rest = [p for p in model.parameters() if p.requires_grad and p not in matrices]
    by_rows = [
        {"params": group, "rows": rows, "name": f"muon {rows}" if rows else "muon"}
        for rows, group in groups.items()
    ]
    first = Muon(by_rows, lr=matrix_lr, momentum=momentum, weight_decay=weight_decay)
    second = torch.optim.AdamW(by_decay(rest, weight_decay), lr=lr, betas=betas, fused=True)
    return CombinedOptimizer([first, second], model)


def checked(beta1: float, beta2: float, **rates: float) -> tuple[float, float]:
    for name, rate in rates.items():
        if not 0 <= rate < math.inf:
            raise UserError(f"{name}={rate} must be at least 0 and finite")
    if not (0 <= beta1 < 1 and 0 <= beta2 < 1):
        raise UserError(f"beta1={beta1} and beta2={beta2} must be at least 0 and below 1")
    return beta1, beta2


def by_decay(parameters: Sequence[Tensor], weight_decay: float) -> list[dict[str, Any]]:
    """Two parameter groups with names: matrices with weight decay, and vectors without."""
    matrices = [each for each in parameters if each.dim() >= 2]
    vectors = [each for each in parameters if each.dim() < 2]
    return [
        {"params": matrices, "weight_decay": weight_decay, "name": "matrices"},
        {"params": vectors, "weight_decay": 0.0, "name": "vectors"},
    ]
