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
    biases) have no size to keep small."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=lr, betas=(beta1, beta2), eps=eps, fused=True)
