"""Optimizers, as functions from a model to a `torch.optim.Optimizer`."""

import torch
from torch import nn


def adamw(
    model: nn.Module,
    *,
    lr: float,
    weight_decay: float,
    beta1: float,
    beta2: float,
    eps: float = 1e-8,
) -> torch.optim.AdamW:
    """AdamW (Loshchilov 2019) in one fused kernel, with decay on matrices only: vectors (norms,
    biases) have no size to keep small.

    Raises ValueError when a beta is out of range.
    """
    if not (0 <= beta1 < 1 and 0 <= beta2 < 1):
        raise ValueError(f"beta1={beta1} and beta2={beta2} must be at least 0 and below 1")
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=lr, betas=(beta1, beta2), eps=eps, fused=True)
