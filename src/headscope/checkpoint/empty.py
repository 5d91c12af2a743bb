"""Builds models without the time or the memory for their initial weights."""

from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode


class WithoutInitialization(TorchFunctionMode):
    """Inside the `with` block, no random initial weights are drawn: the weights of a new model are
    arbitrary, and all must then be read from a file. This saves most of the time to load a
    model."""

    RANDOM = frozenset(
        {
            torch.Tensor.normal_,
            torch.Tensor.uniform_,
            nn.init.normal_,
            nn.init.uniform_,
            nn.init.kaiming_uniform_,
        }
    )

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function in self.RANDOM:
            return args[0] if args else kwargs["tensor"]
        return function(*args, **(kwargs or {}))


class WithoutWeights(TorchFunctionMode):
    """Inside the `with` block, `torch.empty`, and so each weight of a new model, needs no memory.
    Masks and tables do. On the meta device, they would import torch._dynamo, which takes a
    second."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is torch.empty:
            return function(*args, **{**(kwargs or {}), "device": "meta"})
        return function(*args, **(kwargs or {}))
