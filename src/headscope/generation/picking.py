"""Which token comes next, of what the model gives to each.

Shapes: B texts at once, V vocab_size.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from headscope.errors import UserError


def draw(seeds: Sequence[int], device: torch.device) -> Iterator[Tensor]:
    """A number in [0, 1) of each of B seeds, (B,), again and again, on `device`. They are drawn on
    the CPU: a seed gives the same numbers on every device."""
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    while True:  # many at once: a call, or a copy to a GPU, costs more than a number
        numbers = [torch.rand(256, dtype=torch.float64, generator=each) for each in generators]
        yield from torch.stack(numbers, dim=1).to(exact_dtype(device)).to(device)


def exact_dtype(device: torch.device) -> torch.dtype:
    """The format with the most digits that `device` has."""
    return torch.float32 if device.type == "mps" else torch.float64


def pick(
    logits: Tensor,
    *,
    chance: Tensor,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Tensor:
    """A token (B,) for each row of logits (B, V): the one in whose share of softmax(logits /
    temperature) `chance` (B,) falls, the likeliest first.

    `temperature` 0 takes the likeliest. `top_k` keeps the k likeliest; `top_p` then keeps the
    fewest of them that together have that probability (Holtzman 2020).

    Logits stay on their device, and are compared in float64 (on mps in float32). So a seed gives
    the same text again on the same device. On another device, `chance` is the same and the logits
    differ in their last digits: the texts are the same up to the first token at which `chance`, or
    the border of `top_k` or `top_p`, falls between two tokens that are that close.
    """
    logits = logits.to(exact_dtype(logits.device))
    if temperature == 0:
        return logits.argmax(dim=-1)
    if top_k is None and top_p is None:  # the order is all the same
        return place_of(chance, shares(logits, temperature))[:, 0]
    logits, tokens = logits.sort(dim=-1, descending=True, stable=True)
    if top_k is not None:
        logits = logits[:, :top_k]
    probabilities = shares(logits, temperature)
    if top_p is not None:
        before = probabilities.cumsum(dim=-1) - probabilities
        probabilities = probabilities.masked_fill(before >= top_p, 0.0)
    return tokens.gather(1, place_of(chance, probabilities))[:, 0]


def shares(logits: Tensor, temperature: float) -> Tensor:
    """softmax(logits / temperature) of each row (B, V). The largest logit is subtracted first: a
    temperature near 0 would make it infinite."""
    return ((logits - logits.amax(dim=-1, keepdim=True)) / temperature).softmax(dim=-1)


def place_of(chance: Tensor, shares: Tensor) -> Tensor:
    """The place (B, 1) in each row of `shares` (B, V) in which `chance` (B,) of their sum falls."""
    up_to = shares.cumsum(dim=-1)
    return torch.searchsorted(up_to, chance[:, None] * up_to[:, -1:], right=True)


def check_stop(stop: Sequence[str]) -> None:
    """Raises UserError when a text to end before is empty."""
    if "" in stop:
        raise UserError("stop='' is empty: it would end every text before it begins")


def check_sampling(
    *, max_new_tokens: int, temperature: float, top_k: int | None, top_p: float | None
) -> None:
    """Raises UserError when a setting of sampling is out of range."""
    if max_new_tokens < 0:
        raise UserError(f"max_new_tokens={max_new_tokens} must be 0 or more")
    if not 0 <= temperature < float("inf"):
        raise UserError(f"temperature={temperature} must be a number of 0 (greedy) or more")
    if top_k is not None and top_k < 1:
        raise UserError(f"top_k={top_k} must be 1 or more, or null for all tokens")
    if top_p is not None and not 0 < top_p <= 1:
        raise UserError(f"top_p={top_p} must be above 0 and at most 1, or null for all tokens")
