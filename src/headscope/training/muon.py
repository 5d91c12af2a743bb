"""Muon, with all matrices of a shape in one product.

Shapes: N matrices, R rows, C columns.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the polynomial a x + b x^3 + c x^5, which five times over takes every x in (0, 1] near 1."""


class Muon(torch.optim.Optimizer):
    """Momentum whose every step is made orthogonal (Jordan 2024): all directions of a matrix move
    alike, where a gradient has a few that drown the others.

    The update of `torch.optim.Muon`, which takes the matrices one by one: of a small model that
    is a third of a training step, and this less than half of it (docs/performance.md).
    """

    def __init__(
        self, params: Iterable[Tensor], *, lr: float, momentum: float, weight_decay: float
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step. `closure`, which computes the gradients, may be given, and returns the loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            alike: dict[tuple[int, ...], list[Tensor]] = {}
            for matrix in group["params"]:
                if matrix.grad is not None:
                    alike.setdefault(tuple(sorted(matrix.shape)), []).append(matrix)
            for matrices in alike.values():
                self._move(
                    matrices,
                    lr=group["lr"],
                    momentum=group["momentum"],
                    weight_decay=group["weight_decay"],
                )
        return loss

    def _move(
        self, matrices: list[Tensor], *, lr: float, momentum: float, weight_decay: float
    ) -> None:
        gradients = [matrix.grad for matrix in matrices if matrix.grad is not None]
        means = [self._mean(matrix) for matrix in matrices]
        torch._foreach_lerp_(means, gradients, 1 - momentum)
        ahead = torch._foreach_lerp(gradients, means, momentum)  # Nesterov
        steps = orthogonal(torch.stack([wide(step) for step in ahead]))  # (N, R, C), R <= C
        if weight_decay:
            torch._foreach_mul_(matrices, 1 - lr * weight_decay)
        for matrix, step in zip(matrices, steps, strict=True):
            rows, columns = matrix.shape
            step = step if rows <= columns else step.mT
            matrix.add_(step, alpha=-lr * max(1, rows / columns) ** 0.5)

    def _mean(self, matrix: Tensor) -> Tensor:
        """The running mean of its gradients."""
        state = self.state[matrix]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(matrix)
        return state["momentum_buffer"]


def wide(matrix: Tensor) -> Tensor:
    """The matrix, or its transpose, with at most as many rows as columns."""
    return matrix if matrix.size(0) <= matrix.size(1) else matrix.mT


def orthogonal(matrices: Tensor) -> Tensor:
    """(N, R, C), R at most C, with all singular values brought near 1, by five rounds of
    Newton-Schulz in bf16 (Jordan 2024)."""
    a, b, c = COEFFICIENTS
    x = matrices.bfloat16()
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(5):
        gram = x @ x.mT  # (N, R, R)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.to(matrices.dtype)
