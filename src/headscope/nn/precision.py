"""Number formats of models and tensors, and matrix sizes that are fast on GPUs."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor


def upcast_to_float32(x: Tensor) -> Tensor:
    """Converts x to float32, but leaves float64: the two digits of bf16 are too few for scores."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def no_autocast(x: Tensor) -> torch.autocast:
    """Turns autocast off inside a `with` block: matrix products keep the dtype of their inputs."""
    return torch.autocast(x.device.type, enabled=False)


def supports_bf16(device: torch.device) -> bool:
    """Whether `device` supports bfloat16. Emulated support on a GPU does not count."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device.type == "cpu"


def multiplies_bf16_fast(device: torch.device) -> bool:
    """Whether `device` multiplies bfloat16 fast. A CPU without AVX-512 can be 20 times slower."""
    if device.type == "cpu":
        return torch.backends.cpu.get_cpu_capability().startswith("AVX512")
    return supports_bf16(device)


@contextmanager
def tf32(device: torch.device) -> Iterator[None]:
    """Inside this `with` block, a CUDA device multiplies float32 matrices in TF32. Nothing changes
    for other devices: on some CPUs, the same PyTorch setting rounds to bf16."""
    before = torch.get_float32_matmul_precision()
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def padded_linear(x: Tensor, weight: Tensor) -> Tensor:
    """Multiplies x (..., C) by the transpose of weight (V, C). Returns (..., V).

    V is padded with zeros to a multiple of 64, because other sizes are several times slower on
    GPUs. For a single token, as in sampling, copying the matrix takes longer than the product.
    """
    padding = -weight.size(0) % 64
    if padding:
        weight = F.pad(weight, (0, 0, 0, padding))
    logits = F.linear(x, weight)
    return logits[..., :-padding] if padding else logits
