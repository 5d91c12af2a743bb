"""Number formats, and matrix sizes that are fast on GPUs."""

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
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


def supports_bf16(device: torch.device) -> bool:
    """Whether `device` computes in bfloat16 itself, without emulating it."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device.type == "cpu"


@contextmanager
def tf32(device: torch.device) -> Iterator[None]:
    """Inside, a CUDA device multiplies float32 matrices in TF32. For other devices nothing changes:
    on some CPUs the same setting rounds to bf16."""
    before = torch.get_float32_matmul_precision()
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


LARGE = 2**24
"""Weights from which reading them takes most of the time of a sampled token."""


def faster_precision(model: nn.Module) -> str:
    """The one of fp32 and bf16 in which a token is sampled faster. It follows from the device and
    the size alone, so that a seed gives the same text again.

    Of a large model every weight is read from memory for every token, and bf16 is half as much. A
    small model spends its time in calls, and bf16 has more of them.
    """
    weight = next(model.parameters())
    device = weight.device
    fast = supports_bf16(device) and (
        device.type != "cpu" or torch.backends.cpu.get_cpu_capability().startswith("AVX512")
    )
    return "bf16" if fast and sum(p.numel() for p in model.parameters()) >= LARGE else "fp32"


class RowLinear(nn.Linear):
    """nn.Linear for bf16 on a CPU: one row, as in sampling, is multiplied by `torch.mv`, which uses
    all cores. PyTorch's matrix product of one row uses one core."""

    def forward(self, x: Tensor) -> Tensor:
        if x.numel() != self.in_features or torch.compiler.is_compiling():
            return super().forward(x)
        y = torch.mv(self.weight, x.reshape(-1))
        if self.bias is not None:
            y = y + self.bias
        return y.view(*x.shape[:-1], -1)


def in_precision(model: Model, precision: str) -> Model:
    """`model` itself for `fp32`; for `bf16` and `int8` a converted copy.

    `int8` is PyTorch's dynamic quantization, for CPUs only. Weights of linear layers are stored in
    int8 with one scale per matrix, and their inputs are rounded to int8 in every call.

    Raises UserError when `precision` is unknown, or is not supported on the model's device.
    """
    if precision == "fp32":
        return model
    if precision not in ("bf16", "int8"):
        raise UserError(f"precision={precision} must be one of auto, fp32, bf16, int8")
    device = next(model.parameters()).device.type
    if precision == "bf16":
        model = copy.deepcopy(model).bfloat16()
        for part in model.modules():
            if type(part) is nn.Linear and device == "cpu":
                part.__class__ = RowLinear
        return model
    if device != "cpu":
        raise UserError(f"precision=int8 works only with device=cpu, not {device}: use bf16")
    with warnings.catch_warnings():
        # PyTorch warns that torchao replaces this function. PyTorch 2.13 still has it.
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)


def padded_linear(x: Tensor, weight: Tensor) -> Tensor:
    """x (..., C) times the transpose of weight (V, C), (..., V).

    Pads V with zeros to a multiple of 64 for the product, because other sizes are several times
    slower on GPUs. For a single token, as in sampling, copying the matrix would take longer.
    """
    padding = -weight.size(0) % 64
    if padding:
        weight = F.pad(weight, (0, 0, 0, padding))
    logits = F.linear(x, weight)
    return logits[..., :-padding] if padding else logits
