"""Builds models without the time, or also without the memory, for their initial weights."""

from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode


class WithoutInitialization(TorchFunctionMode):
    """Inside the `with` block, no random initial weights are drawn: the weights of a new model are
    arbitrary, and all must then be read from a file. This saves most of the time to load a model.

    With `on_meta`, `torch.empty`, and so each weight of a new model, also needs no memory. Masks
    and tables do: on the meta device, they would import torch._dynamo, which takes a second.
    """

    RANDOM = frozenset(
        {
            torch.Tensor.normal_,
            torch.Tensor.uniform_,
            nn.init.normal_,
            nn.init.uniform_,
            nn.init.kaiming_uniform_,
        }
    )

    def __init__(self, *, on_meta: bool = False) -> None:
        super().__init__()
        self.on_meta = on_meta

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function in self.RANDOM:
            return args[0] if args else kwargs["tensor"]
        on_meta = {"device": "meta"} if self.on_meta and function is torch.empty else {}
        return function(*args, **{**(kwargs or {}), **on_meta})
