"""Figures on repeated random texts: induction heads and related heads (Olsson 2022).

Shapes: L layers, B texts, H heads, P period, T tokens (both queries and keys).

Each text contains a passage of P random tokens twice in a row. The tokens of the second copy can
only be predicted from the first copy. An induction head attends from a token of the second copy to
the token that followed it in the first copy: this target is P - 1 tokens back.

A head that always attends P - 1 tokens back would also find the target. So the texts have different
periods, and a score is a difference: the weight on the target, minus the weight at the same
position in the texts of other periods. Uniform attention, and any attention that depends only on
positions, scores 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headscope.analysis.metrics import previous_mass, uniform
from headscope.errors import UserError
from headscope.nn import GPT
from headscope.nn.capture import attention_weights

TEXTS, BATCH_SIZE = 64, 8
"""Number of texts in a report, and in a batch."""
MAX_PERIODS = 8
"""Largest number of different periods."""
REPEAT_FIGURES = ("induction", "duplicate", "repeat_previous")
MIN_LENGTH, MAX_LENGTH = 8, 128
"""Tokens of a text. 8 is the shortest length with two periods that are not consecutive: 2 and 4."""


@dataclass(frozen=True)
class RepeatedTexts:
    """Texts `tokens` (B, T) that each contain a passage twice in a row. `periods` (B,) are the
    lengths of the passages, `starts` (B,) the positions where the second copies begin."""

    tokens: Tensor
    periods: Tensor
    starts: Tensor


def repeated_texts(
    *, vocab_size: int, length: int, texts: int, seed: int, excluded: Sequence[int] = ()
) -> RepeatedTexts:
    """Random texts that contain a passage twice in a row, at a random position. The periods cycle
    through `periods_in(length)`.

    The tokens in `excluded` are not used. If the vocabulary is large enough, the tokens of a
    passage are all different and occur nowhere else in the text.
    """
    generator = torch.Generator().manual_seed(seed)
    allowed = torch.ones(vocab_size, dtype=torch.bool)
    allowed[list(excluded)] = False
    vocabulary = allowed.nonzero()[:, 0]
    periods = torch.tensor(periods_in(length)).repeat(texts)[:texts]
    rows, starts = [], []
    for period in periods.tolist():
        if len(vocabulary) > period:
            shuffled = vocabulary[torch.randperm(len(vocabulary), generator=generator)]
            passage, others = shuffled[:period], shuffled[period:]
        else:
            drawn = torch.randint(len(vocabulary), (period,), generator=generator)
            passage, others = vocabulary[drawn], vocabulary
        rest_length = length - 2 * period
        rest = others[torch.randint(len(others), (rest_length,), generator=generator)]
        before = int(torch.randint(rest_length + 1, (), generator=generator))
        rows.append(torch.cat([rest[:before], passage, passage, rest[before:]]))
        starts.append(before + period)
    return RepeatedTexts(torch.stack(rows), periods, torch.tensor(starts))


def periods_in(length: int) -> list[int]:
    """Periods for texts of `length` tokens, from an eighth to half of the length. They are spaced
    geometrically, because a model learns induction over short distances first.

    No two periods differ by 1. Otherwise the induction target of one text would be at the same
    distance as the duplicate-token target of another.
    """
    period, longest = max(2, length // 8), length // 2
    ratio = (longest / period) ** (1 / (MAX_PERIODS - 1))
    periods = [period]
    while longest - period >= 2:
        period = min(max(period + 2, round(period * ratio)), longest)
        periods.append(period)
    return periods


def contrast(texts: RepeatedTexts, *, skip: int) -> Tensor:
    """Factors (B, T, T) for the attention weights: the score of a head is the sum of factor times
    weight over texts, queries and keys, divided by B.

    The target of a query in the second copy is the key `skip` tokens after the query's own token in
    the first copy. The factor of the target is 1 / P. At the same position in the texts of other
    periods, the factors sum to -1 / P.
    """
    count, length = texts.tokens.shape
    query = torch.arange(length)[:, None]
    key = torch.arange(length)
    period, start = texts.periods[:, None, None], texts.starts[:, None, None]
    second = (query >= start) & (query < start + period)
    target = (second & (key == query - period + skip)) / period  # (B, T, T)
    others = (texts.periods[:, None] != texts.periods).float()  # (B, B)
    others = others / others.sum(dim=0).clamp(min=1)
    return target - (others @ target.flatten(1)).view(count, length, length)


def induction_contrast(texts: RepeatedTexts) -> Tensor:
    """The target is the token that followed the query's token in the first copy (Olsson 2022)."""
    return contrast(texts, skip=1)


def duplicate_contrast(texts: RepeatedTexts) -> Tensor:
    """The target is the query's own token in the first copy (duplicate-token heads, Wang 2022)."""
    return contrast(texts, skip=0)


def score(weights: Tensor, factors: Tensor) -> Tensor:
    """The sum of weights (..., B, H, T, T) times factors (B, T, T) from `contrast`: (..., H)."""
    per_text = weights.flatten(-2) @ factors.to(weights).flatten(1)[..., None]  # (..., B, H, 1)
    return per_text[..., 0].sum(dim=-2)


def text_length(model: GPT) -> int:
    """Tokens in a repeated text: the model's `block_size`, limited to MAX_LENGTH."""
    return min(model.block_size, MAX_LENGTH)


@torch.no_grad()
def repeat_figures(
    model: GPT, *, excluded: Sequence[int] = (), texts: int = TEXTS, seed: int = 0
) -> dict[str, Tensor]:
    """Figures (L, H) of all heads on `texts` repeated random texts without the tokens `excluded`.

    - `induction` and `duplicate`, from -1 to 1: the mean weight on the target of the queries in the
      second copy, minus the weight at the same positions in texts of other periods. 1 means that
      all weight is on the target, and only where the text repeats. 0 is the value of attention that
      depends only on positions, such as uniform attention.
    - `repeat_previous`, from 0 to 1: the weight on the token just before the query.

    Raises UserError if `block_size` is below MIN_LENGTH, or if `texts` is below 2.
    """
    length = text_length(model)
    if length < MIN_LENGTH or texts < 2:
        raise UserError(
            f"block_size={model.block_size} and texts={texts}: the induction figures need a "
            f"block_size of at least {MIN_LENGTH} and at least 2 texts"
        )
    repeated = repeated_texts(
        vocab_size=model.embedding.num_embeddings,
        length=length,
        texts=texts,
        seed=seed,
        excluded=excluded,
    )
    induction, duplicate = induction_contrast(repeated), duplicate_contrast(repeated)
    sums: dict[str, Tensor] = {}
    for batch in torch.arange(texts).split(BATCH_SIZE):
        weights = attention_weights(model, repeated.tokens[batch].to(model.device))
        batch_sums = {
            "induction": score(weights, induction[batch]),
            "duplicate": score(weights, duplicate[batch]),
            "repeat_previous": previous_mass(weights).sum(dim=1),
        }
        for name, batch_sum in batch_sums.items():
            sums[name] = sums.get(name, 0) + batch_sum
    return {name: total / texts for name, total in sums.items()}


def uniform_repeat_figures(length: int) -> dict[str, float]:
    """The values of `repeat_figures` for uniform attention on texts of `length` tokens."""
    previous = previous_mass(uniform(torch.ones(length, length)))
    return {"induction": 0.0, "duplicate": 0.0, "repeat_previous": float(previous)}
