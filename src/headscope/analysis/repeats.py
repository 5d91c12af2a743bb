"""What heads do when a text repeats itself: induction, and what it is made of (Olsson 2022).

Shapes: L layers, B texts, H heads, P period, T = 2 P tokens.

A text of random tokens that comes twice holds nothing to learn but that it repeats: whoever looks
from a token at the one that followed it the first time knows what comes next.
"""

import torch
from torch import Tensor

from headscope.analysis.capture import attention_weights
from headscope.analysis.metrics import previous_mass
from headscope.errors import UserError
from headscope.nn import GPT

TEXTS, AT_ONCE, LONGEST = 64, 8, 64


def repeated_texts(*, vocab_size: int, period: int, texts: int, seed: int) -> Tensor:
    """Texts (B, 2 P) of P random tokens, twice. No token comes twice in P where the vocabulary has
    enough of them."""
    generator = torch.Generator().manual_seed(seed)
    if vocab_size >= period:
        rows = [torch.randperm(vocab_size, generator=generator)[:period] for _ in range(texts)]
        once = torch.stack(rows)
    else:
        once = torch.randint(vocab_size, (texts, period), generator=generator)
    return torch.cat([once, once], dim=1)


def induction_mass(weights: Tensor) -> Tensor:
    """The weight that the second half of a repeated text puts on the token that followed the same
    token the first time, from 0 to 1: (..., T, T) to (...)."""
    return second_half_mass(weights, back=weights.size(-1) // 2 - 1)


def duplicate_mass(weights: Tensor) -> Tensor:
    """The weight that the second half of a repeated text puts on the same token the first time,
    from 0 to 1: (..., T, T) to (...)."""
    return second_half_mass(weights, back=weights.size(-1) // 2)


def second_half_mass(weights: Tensor, *, back: int) -> Tensor:
    period = weights.size(-1) // 2
    return weights.diagonal(offset=-back, dim1=-2, dim2=-1)[..., period - back :].mean(dim=-1)


def longest_period(model: GPT) -> int:
    """Half of the model's `block_size`, LONGEST at most: longer repeats tell nothing more."""
    return min(model.block_size // 2, LONGEST)


@torch.no_grad()
def repeat_figures(
    model: GPT, *, period: int | None = None, texts: int = TEXTS, seed: int = 0
) -> dict[str, Tensor]:
    """`induction`, `duplicate` and `repeat_previous` (the weight on the token before) of every
    head, (L, H) each: means over `texts` repeated texts.

    `period` is `longest_period` unless given. Raises UserError when it is below 2
    or the text, two periods, longer than `block_size`.
    """
    period = longest_period(model) if period is None else period
    if not 2 <= period <= model.block_size // 2:
        raise UserError(
            f"period={period} must be at least 2 and, twice, at most block_size={model.block_size}"
        )
    vocab_size = model.embedding.num_embeddings
    tokens = repeated_texts(vocab_size=vocab_size, period=period, texts=texts, seed=seed)
    sums: dict[str, Tensor] = {}
    for some in tokens.to(model.device).split(AT_ONCE):
        weights = attention_weights(model, some)  # (L, B, H, T, T)
        for name, metric in REPEAT_METRICS.items():
            sums[name] = sums.get(name, 0) + metric(weights).sum(dim=1)
    return {name: total / texts for name, total in sums.items()}


REPEAT_METRICS = {
    "induction": induction_mass,
    "duplicate": duplicate_mass,
    "repeat_previous": previous_mass,
}


def uniform_induction(period: int) -> float:
    """`induction` of a head that looks at all alike: over the second half, the mean of 1/m."""
    return sum(1 / (token + 1) for token in range(period, 2 * period)) / period
