"""The optimizer Muon, which orthogonalizes all matrices of the same shape in one batched product,
and its combination with an optimizer for all other parameters.

Shapes: N matrices, R rows, C columns.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from headscope.errors import UserError
from headscope.nn.precision import multiplies_bf16_fast

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients a, b, c of the polynomial a x + b x^3 + c x^5 (Jordan 2024). If the polynomial is
applied five times, it maps every x from 0.002 to 1 to a value between 0.6 and 1.3."""


class Muon(torch.optim.Optimizer):
    """SGD with Nesterov momentum and updates whose singular values are near 1 (Jordan 2024).

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
        with torch.enable_grad():
            loss = closure() if closure else None
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


DOES_NOT_FIT = "the optimizer state of the checkpoint does not fit the model: start with init_from="

STATE_KEYS: dict[type, set[str]] = {Muon: {"momentum_buffer"}}
STATE_KEYS |= {torch.optim.AdamW: {"step", "exp_avg", "exp_avg_sq"}}
"""For each optimizer of ours, the keys of the state that it keeps for each parameter."""


class CombinedOptimizer(torch.optim.Optimizer):
    """Combines optimizers, each for different parameters of `model`, into one that Lightning can
    step, save and load. Its parameter groups are those of all optimizers, the same objects, so a
    new learning rate takes effect in both.

    Its state dict has only tensors, named by parameter and key: `embedding.weight.exp_avg`. A
    number in the state of an optimizer becomes a tensor.
    """

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer], model: nn.Module) -> None:
        self.optimizers = list(optimizers)
        self.names: dict[Tensor, str] = {each: name for name, each in model.named_parameters()}
        super().__init__([group for each in optimizers for group in each.param_groups], {})

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Makes one step with each optimizer. `closure` may compute the gradients, once."""
        with torch.enable_grad():
            loss = closure() if closure else None
        for optimizer in self.optimizers:
            optimizer.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        return {
            f"{self.names[parameter]}.{key}": torch.as_tensor(value)
            for each in self.optimizers
            for parameter, state in each.state.items()
            for key, value in state.items()
            if value is not None
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state dict. Raises UserError if it does not fit these parameters."""
        by_parameter: dict[str, dict[str, Tensor]] = {}
        for name, tensor in state_dict.items():
            owner, _, key = name.rpartition(".")
            by_parameter.setdefault(owner, {})[key] = tensor
        for optimizer in self.optimizers:
            state: dict[int, dict[str, Tensor]] = {}
            parameters = chain.from_iterable(each["params"] for each in optimizer.param_groups)
            for number, parameter in enumerate(parameters):
                # A parameter without a gradient until now has no state.
                if own := by_parameter.pop(self.names[parameter], {}):
                    check_state(own, parameter, STATE_KEYS.get(type(optimizer)))
                    state[number] = own
            if not state and type(optimizer) in STATE_KEYS:
                raise UserError(DOES_NOT_FIT)
            groups = optimizer.state_dict()["param_groups"]  # with the settings of this run
            optimizer.load_state_dict({"state": state, "param_groups": groups})
        if by_parameter:
            raise UserError(DOES_NOT_FIT)
        # load_state_dict of each optimizer creates new groups, so they must be collected again.
        self.param_groups = [group for each in self.optimizers for group in each.param_groups]


def check_state(state: dict[str, Tensor], parameter: Tensor, keys: set[str] | None) -> None:
    """Raises UserError if `state` does not fit `parameter`, or the optimizer's `keys`, if known."""
    others = {tensor.shape for tensor in state.values()} - {parameter.shape, torch.Size()}
    if keys and (state.keys() != keys or others):
        raise UserError(DOES_NOT_FIT)
