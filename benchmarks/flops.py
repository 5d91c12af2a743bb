"""Computes the FLOPs of a training step, and measures the FLOPs per second of a device.

A FLOP is one addition or multiplication. The FLOPs come from a formula, because PyTorch's
FlopCounterMode does not count fused attention on a CPU.
"""

import torch
from torch import nn

from benchmarks.runner import seconds_of
from headscope.nn import GPT


def training_flops(model: GPT) -> int:
    """FLOPs of a training step per token (PaLM 2022, appendix B): 6 for each weight of a linear
    layer, and 12 T for each dimension of each head, where T is `block_size`.

    Masked positions in causal attention count like all others. Embeddings do not count, because
    they are only looked up.
    """
    weights = sum(part.weight.numel() for part in model.modules() if isinstance(part, nn.Linear))
    widths = sum(part.heads * part.head_dim for part in model.attentions)
    return 6 * weights + 12 * widths * model.block_size


def matrix_rate(device: torch.device, *, size: int | None = None, rounds: int = 10) -> float:
    """FLOPs per second of a product of two large square matrices, the best of `rounds`. If autocast
    is on, the matrices have the dtype of autocast. Does not use the global random numbers.

    `size` is the number of rows, by default large enough to reach the highest rate.
    """
    size = size or (1024 if device.type == "cpu" else 8192)
    generator = torch.Generator(device).manual_seed(0)
    a, b = (torch.randn(size, size, device=device, generator=generator) for _ in "ab")
    if torch.is_autocast_enabled(device.type):
        a, b = (part.to(torch.get_autocast_dtype(device.type)) for part in (a, b))
    return 2 * size**3 / min(seconds_of(lambda: a @ b, device) for _ in range(rounds))
