"""Picks the next token from the logits.

Shapes: B texts, V vocab_size.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from headscope.errors import UserError


def draw(seeds: Sequence[int], device: torch.device) -> Iterator[Tensor]:
    """Yields random numbers in [0, 1), one for each of B seeds, (B,), on `device`, without end.
    They are drawn on the CPU, so a seed gives the same numbers on every device."""
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    while True:  # draws many at once, because a call or a copy to a GPU costs more than a number
        numbers = [torch.rand(256, dtype=torch.float64, generator=each) for each in generators]
        yield from torch.stack(numbers, dim=1).to(exact_dtype(device)).to(device)


def exact_dtype(device: torch.device) -> torch.dtype:
    """The most precise floating-point format that `device` supports."""
    return torch.float32 if device.type == "mps" else torch.float64


def pick(
    logits: Tensor,
    *,
    chance: Tensor,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Tensor:
    """Samples a token (B,) from softmax(logits / temperature) of each row of logits (B, V), by
    inverse-CDF sampling with the random numbers `chance` (B,).

    `temperature` 0 takes the most likely token. `top_k` keeps the k most likely tokens. `top_p`
    then keeps the smallest set of them with that total probability (Holtzman 2020).

    Logits stay on their device and are compared in float64 (on mps in float32), so on one device a
    seed always gives the same text. On another device, `chance` is the same, but logits differ in
    their last digits. The texts are equal up to the first token where this difference decides.
    """
    logits = logits.to(exact_dtype(logits.device))
    if temperature == 0:
        return logits.argmax(dim=-1)
    if top_k is None and top_p is None:  # any order will do: no sorting
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
    """The first index (B, 1) at which the cumulative sum of `shares` (B, V) exceeds `chance` (B,)
    times the total."""
    up_to = shares.cumsum(dim=-1)
    return torch.searchsorted(up_to, chance[:, None] * up_to[:, -1:], right=True)


def check_stop(stop: Sequence[str]) -> None:
    """Raises UserError when a stop text is empty."""
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
