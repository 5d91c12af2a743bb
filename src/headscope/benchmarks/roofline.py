"""The arithmetic of a token, and the rate that a machine reaches.

PyTorch's FlopCounterMode counts no fused attention on a CPU; the formula here does.
"""

import torch
from torch import nn

from headscope.benchmarks.runner import seconds_of
from headscope.nn import GPT


def training_flops(model: GPT) -> int:
    """Additions and multiplications per token of a training step: 6 per weight of a linear layer,
    and 12 T for each dimension of each head (PaLM 2022, appendix B; without a discount for the
    causal mask). Embeddings are only looked up."""
    weights = sum(part.weight.numel() for part in model.modules() if isinstance(part, nn.Linear))
    widths = sum(part.heads * part.head_dim for part in model.attentions)
    return 6 * weights + 12 * widths * model.block_size


def matrix_rate(device: torch.device) -> float:
    """Additions and multiplications per second in a product of two large matrices. Under autocast,
    they have its precision."""
    size = 1024 if device.type == "cpu" else 8192
    a, b = (torch.randn(size, size, device=device) for _ in "ab")
    if torch.is_autocast_enabled(device.type):
        a, b = (part.to(torch.get_autocast_dtype(device.type)) for part in (a, b))
    return 2 * size**3 / min(seconds_of(lambda: a @ b, device) for _ in range(10))
