"""The optimizer Muon, which orthogonalizes all matrices of the same shape in one batched product.

Shapes: N matrices, R rows, C columns.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from headscope.nn.precision import multiplies_bf16_fast

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients a, b, c of the polynomial a x + b x^3 + c x^5 (Jordan 2024). If the polynomial is
applied five times, it maps every x from 0.002 to 1 to a value between 0.6 and 1.3."""


class Muon(torch.optim.Optimizer):
    """SGD with Nesterov momentum and orthogonalized updates (Jordan 2024): every singular value of
    an update is near 1.

    A parameter group may have the key `rows`, row counts such as [C, C, C], which divide each of
    its matrices into blocks. They are orthogonalized separately, so that the queries, keys and
    values of a fused projection do not share one scale.

    Without `rows`, the update is that of `torch.optim.Muon`, which processes the matrices one by
    one and takes more than twice the time (docs/performance.md).
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        *,
        lr: float,
        momentum: float,
        weight_decay: float,
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "rows": None}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Makes one step. `closure` may compute the gradients first. Returns its loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        same_shape: dict[tuple[int, ...], list[tuple[Tensor, Tensor, float]]] = {}
        for group in self.param_groups:
            matrices = [matrix for matrix in group["params"] if matrix.grad is not None]
            if not matrices:
                continue
            if group["weight_decay"]:
                torch._foreach_mul_(matrices, 1 - group["lr"] * group["weight_decay"])
            for matrix, step in zip(matrices, self._momentum_steps(matrices, group), strict=True):
                rows = group["rows"] or [len(matrix)]
                for block, update in zip(matrix.split(rows), step.split(rows), strict=True):
                    shape = tuple(sorted(block.shape))
                    same_shape.setdefault(shape, []).append((block, update, group["lr"]))
        for blocks in same_shape.values():
            updates = orthogonal(torch.stack([wide(update) for _, update, _ in blocks]))
            for (block, _, lr), update in zip(blocks, updates, strict=True):
                rows, columns = block.shape
                update = update if rows <= columns else update.mT
                block.add_(update, alpha=-lr * max(1, rows / columns) ** 0.5)
        return loss

    def _momentum_steps(self, matrices: list[Tensor], group: dict[str, Any]) -> Any:
        """Updates the running means of the gradients. Returns a Nesterov step for each matrix."""
        gradients = [matrix.grad for matrix in matrices if matrix.grad is not None]
        for matrix in matrices:
            if not self.state[matrix]:
                self.state[matrix]["momentum_buffer"] = torch.zeros_like(matrix)
        means = [self.state[matrix]["momentum_buffer"] for matrix in matrices]
        torch._foreach_lerp_(means, gradients, 1 - group["momentum"])
        return torch._foreach_lerp(gradients, means, group["momentum"])


def wide(matrix: Tensor) -> Tensor:
    """The matrix, transposed if it has more rows than columns."""
    return matrix if matrix.size(0) <= matrix.size(1) else matrix.mT


def orthogonal(matrices: Tensor) -> Tensor:
    """Moves all singular values of each matrix close to 1, by five Newton-Schulz iterations
    (Jordan 2024). They are computed in bf16, or in float32 on a device that multiplies bf16 slowly.
    `matrices` has the shape (N, R, C), with R <= C."""
    a, b, c = COEFFICIENTS
    fast = multiplies_bf16_fast(matrices.device)
    x = matrices.to(torch.bfloat16 if fast else torch.float32)
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(5):
        gram = x @ x.mT  # (N, R, R)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.to(matrices.dtype)
