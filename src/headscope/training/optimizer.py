"""Optimizers, as functions from a model to a `torch.optim.Optimizer`."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headscope.errors import UserError
from headscope.training.muon import Muon


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

    Raises UserError when a beta is out of range.
    """
    betas = checked(beta1, beta2)
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = by_decay(parameters, weight_decay)
    return torch.optim.AdamW(groups, lr=lr, betas=betas, eps=eps, fused=True)


def muon(
    model: nn.Module,
    *,
    lr: float,
    matrix_lr: float,
    momentum: float,
    weight_decay: float,
    beta1: float,
    beta2: float,
    eps: float = 1e-8,
) -> "CombinedOptimizer":
    """Muon (Jordan 2024) at the rate `matrix_lr` on the matrices of the blocks' linear layers. It
    makes their updates orthogonal. AdamW at `lr` on everything else: embeddings, head, vectors, and
    stacks of vectors such as `AdditiveAttention.w`. Decay is on all with two axes or more.

    Raises UserError when a beta or the momentum is out of range, or the model has no blocks.
    """
    betas = checked(beta1, beta2)
    if not 0 <= momentum < 1:
        raise UserError(f"momentum={momentum} must be at least 0 and below 1")
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    linear = {
        f"{name}.weight"
        for name, part in model.named_modules()
        if name.startswith("blocks.") and isinstance(part, nn.Linear)
    }
    matrices = {name: p for name, p in trained.items() if name in linear}
    if not matrices:
        raise UserError(
            "optimizer=muon is for headscope's own models, whose blocks have matrices to train: "
            "take optimizer=adamw"
        )
    rest = [p for name, p in trained.items() if name not in matrices]
    return CombinedOptimizer(
        [
            Muon(
                list(matrices.values()), lr=matrix_lr, momentum=momentum, weight_decay=weight_decay
            ),
            torch.optim.AdamW(
                by_decay(rest, weight_decay), lr=lr, betas=betas, eps=eps, fused=True
            ),
        ]
    )


class CombinedOptimizer(torch.optim.Optimizer):
    """Several optimizers, each of its own parameters, as the one that Lightning steps, saves and
    loads. Its groups are theirs, in order: a rate that is set here holds there."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self.optimizers = list(optimizers)
        super().__init__([group for each in optimizers for group in each.param_groups], {})

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of each. `closure`, which computes the gradients, is called once."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for optimizer in self.optimizers:
            optimizer.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        return {"optimizers": [optimizer.state_dict() for optimizer in self.optimizers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for optimizer, state in zip(self.optimizers, state_dict["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        # Loading makes new groups.
        self.param_groups = [group for each in self.optimizers for group in each.param_groups]


def checked(beta1: float, beta2: float) -> tuple[float, float]:
    if not (0 <= beta1 < 1 and 0 <= beta2 < 1):
        raise UserError(f"beta1={beta1} and beta2={beta2} must be at least 0 and below 1")
    return beta1, beta2


def by_decay(parameters: Iterable[Tensor], weight_decay: float) -> list[dict[str, Any]]:
    """Two groups, of which matrices alone decay."""
    parameters = list(parameters)
    return [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
