"""Several optimizers as one, for Lightning."""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from headscope.errors import UserError
from headscope.training.muon import Muon


def combined(optimizer: torch.optim.Optimizer, model: nn.Module) -> "CombinedOptimizer":
    """An optimizer of ours as it is, and any other, such as torch.optim.SGD, as one of ours."""
    if isinstance(optimizer, CombinedOptimizer):
        return optimizer
    return CombinedOptimizer([optimizer], model)


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
    """Raises UserError if `state` is not that of `parameter` in an optimizer with these keys, if
    they are known."""
    others = {tensor.shape for tensor in state.values()} - {parameter.shape, torch.Size()}
    if keys and (state.keys() != keys or others):
        raise UserError(DOES_NOT_FIT)
