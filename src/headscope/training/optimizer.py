"""Functions that create the optimizer of a model."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headscope.errors import UserError, first_line
from headscope.nn import MultiHeadAttention
from headscope.training.muon import Muon


def adamw(
    model: nn.Module,
    *,
    lr: float,
    weight_decay: float,
    beta1: float,
    beta2: float,
) -> "CombinedOptimizer":
    """AdamW (Loshchilov 2019) with a fused kernel. Weight decay applies to matrices, but not to
    vectors (biases, and the gains of normalization layers).

    Raises UserError if a value is out of range.
    """
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
) -> "CombinedOptimizer":
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
        raise UserError(
            "optimizer=muon needs a model of headscope, whose blocks have matrices to train: "
            "use optimizer=adamw"
        )
    matrices = {matrix for group in groups.values() for matrix in group}
    rest = [p for p in model.parameters() if p.requires_grad and p not in matrices]
    return CombinedOptimizer(
        [
            Muon(
                [{"params": group, "rows": rows} for rows, group in groups.items()],
                lr=matrix_lr,
                momentum=momentum,
                weight_decay=weight_decay,
            ),
            torch.optim.AdamW(by_decay(rest, weight_decay), lr=lr, betas=betas, fused=True),
        ],
        model,
    )


def optimizer_of(
    model: nn.Module, make: Callable[..., torch.optim.Optimizer]
) -> "CombinedOptimizer":
    """The optimizer that `make` creates: one of ours, or any other, such as torch.optim.SGD."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    try:
        optimizer = make(model=model, params=parameters)
    except UserError:
        raise
    except ValueError as error:  # of torch, about a value
        raise UserError(f"optimizer: {first_line(error)}") from error
    if isinstance(optimizer, CombinedOptimizer):
        return optimizer
    return CombinedOptimizer([optimizer], model)


DOES_NOT_FIT = (
    "the optimizer state of the checkpoint does not fit the model, so the run cannot be resumed: "
    "start a new run from its weights with init_from="
)

STATE_KEYS: dict[type, set[str]] = {
    torch.optim.AdamW: {"step", "exp_avg", "exp_avg_sq"},
    Muon: {"momentum_buffer"},
}
"""For each optimizer of ours, the keys of the state that it keeps for each parameter."""


class CombinedOptimizer(torch.optim.Optimizer):
    """Combines optimizers, each for different parameters of `model`, into one that Lightning can
    step, save and load. The parameter groups of the combined optimizer are the groups of all
    optimizers, in order. The groups are the same objects, so a new learning rate in a group also
    takes effect in the optimizer that the group belongs to.

    Its state dict has only tensors, named by parameter and key: `embedding.weight.exp_avg`. A
    number in the state of an optimizer becomes a tensor.
    """

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer], model: nn.Module) -> None:
        self.optimizers = list(optimizers)
        self.names: dict[Tensor, str] = {
            parameter: name for name, parameter in model.named_parameters()
        }
        super().__init__([group for each in optimizers for group in each.param_groups], {})

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make one step with each optimizer. If `closure` is given, it computes the gradients and
        is called only once."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
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
            for number, parameter in enumerate(parameters_of(optimizer)):
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
    """Raises UserError if `state` is not that of `parameter` in an optimizer with these keys, if
    they are known."""
    others = {tensor.shape for tensor in state.values()} - {parameter.shape, torch.Size()}
    if keys and (state.keys() != keys or others):
        raise UserError(DOES_NOT_FIT)


def parameters_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def checked(beta1: float, beta2: float, **rates: float) -> tuple[float, float]:
    for name, rate in rates.items():
        if not 0 <= rate < math.inf:
            raise UserError(f"{name}={rate} must be at least 0 and finite")
    if not (0 <= beta1 < 1 and 0 <= beta2 < 1):
        raise UserError(f"beta1={beta1} and beta2={beta2} must be at least 0 and below 1")
    return beta1, beta2


def by_decay(parameters: Iterable[Tensor], weight_decay: float) -> list[dict[str, Any]]:
    """Two parameter groups: matrices with weight decay, and vectors without weight decay."""
    parameters = list(parameters)
    return [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
