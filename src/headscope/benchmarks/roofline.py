"""How much arithmetic and memory traffic a token takes, and how much a machine can do.

PyTorch's FlopCounterMode counts no fused attention on a CPU; the formula here does.
"""

from collections.abc import Callable

import torch
from torch import nn

from headscope.benchmarks.runner import seconds_of
from headscope.nn import GPT


def weights_in_products(model: GPT) -> int:
    """All weights of linear layers, the output head included; embeddings are only looked up."""
    return sum(part.weight.numel() for part in model.modules() if isinstance(part, nn.Linear))


def training_flops(model: GPT) -> int:
    """Additions and multiplications per token of a training step: 6 per weight, and 12 T for each
    dimension of each head (PaLM 2022, appendix B; includes what a causal mask hides)."""
    widths = sum(part.heads * part.head_dim for part in model.attentions)
    return 6 * weights_in_products(model) + 12 * widths * model.block_size


def bytes_per_token(model: GPT, kind: str, length: int) -> int:
    """Bytes to read to sample a token: weights, and the keys and values of `length` tokens."""
    size = {"fp32": 4, "bf16": 2, "int8": 1}[kind]
    cache = sum(2 * part.kv_heads * part.head_dim for part in model.attentions)
    cache *= 2 if kind == "bf16" else 4
    return weights_in_products(model) * size + cache * length


def matrix_rate(device: torch.device) -> float:
    """Additions and multiplications per second in a product of two large matrices, under autocast
    in its precision."""
    size = 1024 if device.type == "cpu" else 8192
    a, b = (torch.randn(size, size, device=device) for _ in "ab")
    if torch.is_autocast_enabled(device.type):
        a, b = (part.to(torch.get_autocast_dtype(device.type)) for part in (a, b))
    return 2 * size**3 / least_seconds(lambda: a @ b, device)


def read_bandwidth(device: torch.device, *, megabytes: int = 512) -> float:
    """Bytes per second that a sum over a large array reads."""
    numbers = torch.ones(megabytes * 2**18, device=device)
    return numbers.nbytes / least_seconds(numbers.sum, device)


def least_seconds(call: Callable[[], object], device: torch.device) -> float:
    return min(seconds_of(call, device) for _ in range(10))
