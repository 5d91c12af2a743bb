"""What there is to do, and how much of it a machine could do at most."""

import time
from collections.abc import Callable

import torch
from torch import nn

from headscope.nn import GPT
from headscope.training.bare_loop import wait_for


def weights_in_products(model: GPT) -> int:
    """Every weight but those of the tables that are only looked up in."""
    return sum(part.weight.numel() for part in model.modules() if isinstance(part, nn.Linear))


def training_flops(model: GPT) -> int:
    """Additions and multiplications that a token takes in a training step with full contexts: six
    for every weight in a product, and 12 for every layer, number of a head and token in the context
    (PaLM 2022, appendix B, which counts what a causal mask hides too)."""
    widths = sum(part.heads * part.head_dim for part in model.attentions)
    return 6 * weights_in_products(model) + 12 * widths * model.block_size


def matrix_rate(device: torch.device) -> float:
    """Additions and multiplications per second in the product of two large matrices, under autocast
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


def least_seconds(call: Callable[[], object], device: torch.device, *, times: int = 10) -> float:
    """What a call takes at best."""
    seconds = []
    for _ in range(times):
        wait_for(device)
        started = time.perf_counter()
        call()
        wait_for(device)
        seconds.append(time.perf_counter() - started)
    return min(seconds)
