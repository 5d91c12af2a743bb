"""Models with smaller weights, for sampling and evaluation: bf16, and int8 on CPUs."""

import copy
import warnings
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headscope.errors import UserError
from headscope.nn import GPT
from headscope.nn.precision import multiplies_bf16_fast

LARGE = 2**24
"""The number of weights above which reading them takes most of the time to sample a token."""


def faster_precision(model: nn.Module) -> str:
    """Returns fp32 or bf16, whichever is faster for sampling. The result depends only on the device
    and the model's size, so a seed always gives the same text on the same device.

    A large model spends most of its time on reading its weights, which have half as many bytes in
    bf16. A small model spends most of its time on the overhead of operations, which bf16 increases.
    """
    weight = next(model.parameters())
    fast = multiplies_bf16_fast(weight.device)
    return "bf16" if fast and sum(p.numel() for p in model.parameters()) >= LARGE else "fp32"


class Int8Linear(nn.Module):
    """A linear layer for CPUs that stores the weight (N, C) of `linear` in int8, with one scale per
    row. PyTorch's int8 product also rounds the input to int8, with one scale per call. It uses a
    packed copy of the weight, which the compiler cannot read. So compiled code uses `weight`
    instead, and does not round the input."""

    weight: Tensor
    scale: Tensor
    bias: Tensor | None

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach().float()
        bias = None if linear.bias is None else linear.bias.detach().float()
        scale = (weight.abs().amax(dim=1) / 127).clamp(min=torch.finfo(torch.float32).tiny)
        zeros = torch.zeros(len(scale), dtype=torch.long)
        with warnings.catch_warnings():  # PyTorch has deprecated quantized tensors
            warnings.simplefilter("ignore", UserWarning)
            rounded = torch.quantize_per_channel(weight, scale, zeros, axis=0, dtype=torch.qint8)
        packed = torch.ops.quantized.linear_prepack(rounded, bias)
        multiply = torch.ops.quantized.linear_dynamic
        self.multiply = partial(multiply, W_prepack=packed, reduce_range=True)
        self.register_buffer("weight", rounded.int_repr())
        self.register_buffer("scale", scale)
        self.register_buffer("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            return self.multiply(x)
        y = F.linear(x, self.weight) * self.scale
        return y if self.bias is None else y + self.bias


def in_precision(model: GPT, precision: str) -> GPT:
    """Converts a model to `precision`. For `fp32`, returns `model` itself; for `bf16` and `int8`,
    returns a converted copy. `int8` converts only the weights of linear layers (see `Int8Linear`).
    Raises UserError when `precision` is unknown, or when the model's device does not support it."""
    if precision == "fp32":
        return model
    if precision not in ("bf16", "int8"):
        raise UserError(f"precision={precision} must be one of auto, fp32, bf16, int8")
    if precision == "bf16":
        return copy.deepcopy(model).bfloat16()
    device = next(model.parameters()).device.type
    if device != "cpu":
        raise UserError(f"precision=int8 works only with device=cpu, not {device}: use bf16")
    model = copy.deepcopy(model)
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            # A layer before which outputs are held (see `add_hold`) stays, with its hook.
            if type(child) is nn.Linear and not hasattr(child, "held"):
                setattr(parent, name, Int8Linear(child))
    return model
