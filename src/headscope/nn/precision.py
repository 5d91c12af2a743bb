"""Number formats, and matrix sizes that are fast on GPUs."""

import copy
import warnings
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headscope.errors import UserError

Model = TypeVar("Model", bound=nn.Module)


def upcast_to_float32(x: Tensor) -> Tensor:
    """x in float32; float64 stays float64. The two to three digits of bf16 are too few for scores
    and angles."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def no_autocast(x: Tensor) -> torch.autocast:
    """A context without autocast on the device of x, so that products keep the inputs' dtype."""
    return torch.autocast(x.device.type, enabled=False)


def in_precision(model: Model, precision: str) -> Model:
    """`model` itself for `fp32`; for `bf16` and `int8` a converted copy.

    `int8` is PyTorch's dynamic quantization, for CPUs only. Weights of linear layers are stored in
    int8 with one scale per matrix, and their inputs are rounded to int8 in every call.

    Raises UserError when `precision` is unknown, or is not supported on the model's device.
    """
    if precision == "fp32":
        return model
    if precision == "bf16":
        return copy.deepcopy(model).bfloat16()
    if precision != "int8":
        raise UserError(f"precision={precision} must be fp32, bf16 or int8")
    device = next(model.parameters()).device.type
    if device != "cpu":
        raise UserError(f"precision=int8 works only with device=cpu, not {device}: use bf16")
    with warnings.catch_warnings():
        # PyTorch warns that torchao replaces this function. PyTorch 2.13 still has it.
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)


def padded_linear(x: Tensor, weight: Tensor) -> Tensor:
    """x (..., C) times the transpose of weight (V, C), giving (..., V). For the product, V is padded
    to a multiple of 64, because other sizes are several times slower on GPUs. The result is not
    padded."""
    padding = -weight.size(0) % 64
    return F.linear(x, F.pad(weight, (0, 0, 0, padding)))[..., : weight.size(0)]
