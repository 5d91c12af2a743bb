"""Chooses the next tokens from the model's logits.

Shapes: B number of texts, V vocab_size.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from headscope.errors import UserError, whole_number
from headscope.nn.loss import NOT_FINITE


def uniform_numbers(seeds: Sequence[int], device: torch.device) -> Iterator[Tensor]:
    """Yields an endless series of tensors (B,) of random numbers in [0, 1). Each tensor has one
    number from each of the B seeds.

    The generators are on the CPU, so that a seed gives the same numbers on every device.
    """
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    dtype = most_precise_dtype(device)
    largest = 1 - torch.finfo(dtype).eps  # float32 would round some numbers to 1
    # Draws 256 numbers at a time, to reduce calls and copies to the GPU.
    while True:
        drawn = [torch.rand(256, dtype=torch.float64, generator=random) for random in generators]
        yield from torch.stack(drawn, dim=1).clamp(max=largest).to(dtype).to(device)


def most_precise_dtype(device: torch.device) -> torch.dtype:
    """float64, or float32 on mps, which has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def choose_tokens(
    logits: Tensor,
    *,
    uniform: Tensor,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Tensor:
    """Samples a token (B,) from softmax(logits / temperature), for each row of logits (B, V).

    Uses inverse-CDF sampling with the random numbers `uniform` (B,) in [0, 1). `temperature=0`
    takes the most likely token. `top_k` keeps only the k most likely tokens. `top_p` then keeps
    only the most likely tokens, as few as needed for a total probability of top_p (Holtzman 2020).

    The same seed gives the same text on the same device. On another device, the logits differ in
    their last digits. In rare cases, this changes a token and the text after it. Probabilities are
    computed in float64 (on mps in float32) to make such cases rarer.

    If a logit is NaN or infinite, the token is -1. `check_chosen` raises UserError then.
    """
    logits = logits.to(most_precise_dtype(logits.device))
    if temperature == 0:
        chosen = logits.argmax(dim=-1)
    elif top_k is None and top_p is None:  # the tokens need not be sorted
        chosen = inverse_cdf(uniform, probabilities_of(logits, temperature))[:, 0]
    else:
        tokens, probabilities = candidates(logits, temperature, top_k, top_p)
        chosen = tokens.gather(1, inverse_cdf(uniform, probabilities))[:, 0]
    return chosen.where(logits.amax(dim=-1).isfinite(), -1)


def check_chosen(tokens: Sequence[int]) -> None:
    """Raises UserError if `choose_tokens` could not choose one of the tokens."""
    if -1 in tokens:
        raise UserError(NOT_FINITE)


def candidates(
    logits: Tensor, temperature: float, top_k: int | None, top_p: float | None
) -> tuple[Tensor, Tensor]:
    """The tokens (B, V), the most likely first, and the weights (B, K) with which `choose_tokens`
    samples the first K of them, the `top_k`. The weights are softmax(logits / temperature) over
    these K tokens, and 0 for those that `top_p` removes."""
    logits, tokens = logits.sort(dim=-1, descending=True, stable=True)
    if top_k is not None:
        logits = logits[:, :top_k]
    probabilities = probabilities_of(logits, temperature)
    if top_p is not None:
        sum_before = probabilities.cumsum(dim=-1) - probabilities
        probabilities = probabilities.masked_fill(sum_before >= top_p, 0.0)
    return tokens, probabilities


def distribution(
    logits: Tensor,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Tensor:
    """The probabilities (B, V) with which `choose_tokens` chooses each token, in its dtype."""
    logits = logits.to(most_precise_dtype(logits.device))
    if temperature == 0:
        temperature, top_k, top_p = 1.0, 1, None
    tokens, weights = candidates(logits, temperature, top_k, top_p)
    shares = weights / weights.sum(dim=-1, keepdim=True)
    return torch.zeros_like(logits).scatter(1, tokens[:, : weights.size(1)], shares)


def probabilities_of(logits: Tensor, temperature: float) -> Tensor:
    """softmax(logits / temperature) for each row of logits (B, V). Subtracts the largest logit of
    the row first. Otherwise, logits / temperature could be infinite for a temperature near 0."""
    return ((logits - logits.amax(dim=-1, keepdim=True)) / temperature).softmax(dim=-1)


def inverse_cdf(uniform: Tensor, probabilities: Tensor) -> Tensor:
    """Inverse-CDF sampling. For each row of `probabilities` (B, V), returns the first index (B, 1)
    at which the cumulative sum exceeds `uniform` (B,) times the sum of the row, or the last index
    if there is none, as in a row of NaN."""
    cumulative = probabilities.cumsum(dim=-1)
    index = torch.searchsorted(cumulative, uniform[:, None] * cumulative[:, -1:], right=True)
    return index.clamp(max=probabilities.size(-1) - 1)


def check_sampling(
    *, max_new_tokens: int, temperature: float, top_k: int | None, top_p: float | None
) -> None:
    """Raises UserError when a sampling setting is out of range, or no number."""
    whole_number(max_new_tokens, "max_new_tokens", 0)
    if top_k is not None:
        whole_number(top_k, "top_k", 1)
    if not isinstance(temperature, int | float) or not 0 <= temperature < float("inf"):
        raise UserError(f"temperature={temperature!r} must be a number of 0 (greedy) or more")
    if top_p is not None and (not isinstance(top_p, int | float) or not 0 < top_p <= 1):
        raise UserError(f"top_p={top_p!r} must be above 0 and at most 1, or null for all tokens")
