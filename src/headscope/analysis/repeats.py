"""What heads do when a text repeats itself: induction, and what it is made of (Olsson 2022).

Shapes: L layers, B texts, H heads, P period, T tokens, each a query and a key.

A passage of P random tokens that comes twice holds nothing to learn but that it repeats: whoever
looks from a token of the second copy at the one that followed it in the first knows what comes
next. The target of induction is thus P - 1 tokens back, and a head that always looks so far back
would hit it without knowing of any repeat. So every text has a period and a place of its own, and
what is scored is a difference: the weight on the target, less the weight that the texts of other
periods put on the same place. What depends on the position alone scores 0, uniform attention too.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headscope.analysis.metrics import previous_mass, uniform
from headscope.errors import UserError
from headscope.nn import GPT
from headscope.nn.capture import attention_weights

TEXTS, AT_ONCE = 64, 8
"""Texts that a report scores, and those that go through the model together."""
PERIODS = 8
"""As many different periods at most."""
REPEAT_FIGURES = ("induction", "duplicate", "repeat_previous")
SHORTEST, LONGEST = 8, 128
"""Tokens of a text: two periods that do not follow one another, 2 and 4, need 8."""


@dataclass(frozen=True)
class RepeatedTexts:
    """`tokens` (B, T), in each a passage of `periods` (B,) tokens that comes twice in a row; the
    second copy begins at `starts` (B,)."""

    tokens: Tensor
    periods: Tensor
    starts: Tensor


def repeated_texts(
    *, vocab_size: int, length: int, texts: int, seed: int, leave_out: Sequence[int] = ()
) -> RepeatedTexts:
    """Texts (B, T) of random tokens with a passage that comes twice, at a random place, with
    the periods of `periods_in` in turn.

    The tokens `leave_out` do not occur. A token of the passage is nowhere else in the text, nor
    twice in the passage, where the vocabulary has enough of them.
    """
    generator = torch.Generator().manual_seed(seed)
    allowed = torch.ones(vocab_size, dtype=torch.bool)
    allowed[list(leave_out)] = False
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
        around = length - 2 * period
        rest = others[torch.randint(len(others), (around,), generator=generator)]
        before = int(torch.randint(around + 1, (), generator=generator))
        rows.append(torch.cat([rest[:before], passage, passage, rest[before:]]))
        starts.append(before + period)
    return RepeatedTexts(torch.stack(rows), periods, torch.tensor(starts))


def periods_in(length: int) -> list[int]:
    """Periods for texts of `length` tokens, from an eighth to half of it, each about as many times
    the one before: induction is learned over short distances first.

    No two follow one another: the target of induction in one text would be that of duplicate
    tokens in another.
    """
    period, longest = max(2, length // 8), length // 2
    ratio = (longest / period) ** (1 / (PERIODS - 1))
    periods = [period]
    while longest - period >= 2:
        period = min(max(period + 2, round(period * ratio)), longest)
        periods.append(period)
    return periods


def contrast(texts: RepeatedTexts, *, skip: int) -> Tensor:
    """What to multiply the weights of every text with, (B, T, T), so that their sum over queries,
    keys and texts, over B, is the score of a head.

    A query of the second copy has its target `skip` after its own token in the first copy. There
    the factor is 1 / P, and in the texts of other periods, together, -1 / P.
    """
    count, length = texts.tokens.shape
    query = torch.arange(length)[:, None]
    key = torch.arange(length)
    period, start = texts.periods[:, None, None], texts.starts[:, None, None]
    second = (query >= start) & (query < start + period)
    target = (second & (key == query - period + skip)) / period  # (B, T, T)
    other = (texts.periods[:, None] != texts.periods).float()  # (B, B)
    other = other / other.sum(dim=0).clamp(min=1)
    return target - (other @ target.flatten(1)).view(count, length, length)


def induction_contrast(texts: RepeatedTexts) -> Tensor:
    """The target is the token that followed the query's own the first time (Olsson 2022)."""
    return contrast(texts, skip=1)


def duplicate_contrast(texts: RepeatedTexts) -> Tensor:
    """The target is the query's own token the first time (duplicate-token heads, Wang 2022)."""
    return contrast(texts, skip=0)


def score(weights: Tensor, factors: Tensor) -> Tensor:
    """The sum over texts of weights (..., B, H, T, T) times the `contrast` (B, T, T): (..., H)."""
    each = weights.flatten(-2) @ factors.to(weights).flatten(1)[..., None]  # (..., B, H, 1)
    return each[..., 0].sum(dim=-2)


def text_length(model: GPT) -> int:
    """Tokens of a repeated text: the model's `block_size`, LONGEST at most."""
    return min(model.block_size, LONGEST)


@torch.no_grad()
def repeat_figures(
    model: GPT, *, leave_out: Sequence[int] = (), texts: int = TEXTS, seed: int = 0
) -> dict[str, Tensor]:
    """Figures of every head on `texts` repeated random texts, without the tokens `leave_out`,
    (L, H) each:

    - `induction` and `duplicate`: the weight of the second copy's queries on the target, less that
      at the same place in texts of other periods. From -1 to 1; 1: all weight, and only where the
      text repeats; 0: uniform attention, or one that depends on the position alone;
    - `repeat_previous`: the weight on the token before, from 0 to 1.

    Raises UserError when `block_size` is below SHORTEST or there are fewer than 2 texts.
    """
    length = text_length(model)
    if length < SHORTEST or texts < 2:
        raise UserError(
            f"induction needs block_size={model.block_size} to be at least {SHORTEST} and "
            f"texts={texts} at least 2"
        )
    repeated = repeated_texts(
        vocab_size=model.embedding.num_embeddings,
        length=length,
        texts=texts,
        seed=seed,
        leave_out=leave_out,
    )
    induction, duplicate = induction_contrast(repeated), duplicate_contrast(repeated)
    sums: dict[str, Tensor] = {}
    for some in torch.arange(texts).split(AT_ONCE):
        weights = attention_weights(model, repeated.tokens[some].to(model.device))
        parts = {
            "induction": score(weights, induction[some]),
            "duplicate": score(weights, duplicate[some]),
            "repeat_previous": previous_mass(weights).sum(dim=1),
        }
        for name, part in parts.items():
            sums[name] = sums.get(name, 0) + part
    return {name: total / texts for name, total in sums.items()}


def uniform_repeat_figures(length: int) -> dict[str, float]:
    """`repeat_figures` of a head that looks at all it sees alike, on texts of this length."""
    previous = previous_mass(uniform(torch.ones(length, length)))
    return {"induction": 0.0, "duplicate": 0.0, "repeat_previous": float(previous)}
