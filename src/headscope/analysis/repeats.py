"""Metrics on repeated random texts: induction and duplicate-token heads (Olsson 2022; Wang 2022).

Shapes: L layers, B texts, H heads, P tokens in the repeated passage (the period), T tokens.

Each text contains a passage of P random tokens twice in a row. A model can predict the tokens of
the second copy only from the first copy. From a token in the second copy, an induction head attends
to the token that followed the same token in the first copy. This target is P - 1 tokens back.

A head that always attends P - 1 tokens back would also attend to the target, without any induction.
To score 0 for such heads, the texts have different periods, and the score of a head is a
difference: the weight on the target, minus the weight at the same position in texts with other
periods. Attention that depends only on positions, such as uniform attention, scores 0.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headscope.analysis.metrics import beyond_first, previous_mass, uniform
from headscope.errors import UserError
from headscope.nn import GPT
from headscope.nn.capture import capture

TEXTS, BATCH_SIZE = 64, 8
"""Number of texts in a report, and number of texts in a batch."""
MAX_PERIODS = 8
"""Largest number of different periods."""
REPEAT_METRICS = ("induction", "duplicate", "repeat_previous", "prefix_matching")
MIN_LENGTH, MAX_LENGTH, MIN_VOCABULARY = 8, 128, 5
"""Minimum and maximum number of tokens in a text, and the minimum number of different tokens. With
8 tokens, there are two periods that differ by more than 1: 2 and 4. Shorter texts have only one
period. A passage of 4 different tokens and another token before and after it need 5 tokens."""


@dataclass(frozen=True)
class RepeatedTexts:
    """Texts that each contain a passage twice in a row. `tokens` (B, T), the lengths of the
    passages, `periods` (B,), and where the second copies begin, `starts` (B,)."""

    tokens: Tensor
    periods: Tensor
    starts: Tensor


def repeated_texts(
    *, vocab_size: int, length: int, texts: int, seed: int, excluded: Sequence[int] = ()
) -> RepeatedTexts:
    """Generate random texts that each contain a passage twice in a row, at a random position. The
    lengths of the passages cycle through those of `periods_in`, or through some of these that are
    spread over the whole range if there are fewer texts.

    The texts do not contain the tokens in `excluded`. The tokens of a passage are all different and
    occur nowhere else in the text.
    """
    generator = torch.Generator().manual_seed(seed)
    allowed = torch.ones(vocab_size, dtype=torch.bool)
    allowed[list(excluded)] = False
    vocabulary = allowed.nonzero()[:, 0]
    possible = torch.tensor(periods_in(length, longest=len(vocabulary) - 1))
    spread = torch.linspace(0, len(possible) - 1, min(texts, len(possible))).round().long()
    periods = possible[spread].repeat(texts)[:texts]
    rows, starts = [], []
    for period in periods.tolist():
        shuffled = vocabulary[torch.randperm(len(vocabulary), generator=generator)]
        passage, others = shuffled[:period], shuffled[period:]
        rest_length = length - 2 * period
        rest = others[torch.randint(len(others), (rest_length,), generator=generator)]
        before = int(torch.randint(rest_length + 1, (), generator=generator))
        rows.append(torch.cat([rest[:before], passage, passage, rest[before:]]))
        starts.append(before + period)
    return RepeatedTexts(torch.stack(rows), periods, torch.tensor(starts))


def periods_in(length: int, longest: int) -> list[int]:
    """The periods (passage lengths) for texts of `length` tokens, from an eighth to half of
    `length`, and at most `longest`. The periods are spaced geometrically, because a model learns
    induction over short distances first.

    No two periods differ by 1. Otherwise the induction target of one text would be at the same
    distance as the duplicate-token target of another.
    """
    longest = min(longest, length // 2)
    period = max(2, min(length // 8, longest // 2))
    ratio = (longest / period) ** (1 / (MAX_PERIODS - 1))
    periods = [period]
    while longest - period >= 2:
        period = min(max(period + 2, round(period * ratio)), longest)
        periods.append(period)
    return periods


def contrast(texts: RepeatedTexts, *, skip: int) -> Tensor:
    """Factors (B, T, T) that turn attention weights into a score: the sum of factor times weight
    over all texts, queries and keys, divided by B.

    The target of a query in the second copy is the key `skip` tokens after the same token in the
    first copy. With 1, induction heads attend to it (Olsson 2022), and with 0, duplicate-token
    heads (Wang 2022). The factor of the target is 1 / P. At the same position in the texts with
    other periods, the factors sum to -1 / P.
    """
    count, length = texts.tokens.shape
    target = target_factors(texts, skip=skip)
    others = (texts.periods[:, None] != texts.periods).float()  # (B, B)
    others = others / others.sum(dim=0).clamp(min=1)
    return target - (others @ target.flatten(1)).view(count, length, length)


def target_factors(texts: RepeatedTexts, *, skip: int) -> Tensor:
    """Factors (B, T, T) like those of `contrast`, but only for the targets."""
    length = texts.tokens.size(1)
    query = torch.arange(length)[:, None]
    key = torch.arange(length)
    period, start = texts.periods[:, None, None], texts.starts[:, None, None]
    second = (query >= start) & (query < start + period)
    return (second & (key == query - period + skip)) / period


def score(weights: Tensor, factors: Tensor) -> Tensor:
    """Multiplies weights (..., B, H, T, T) by factors (B, T, T), and sums over texts, queries and
    keys. `contrast` computes the factors. The result has shape (..., H)."""
    per_text = weights.flatten(-2) @ factors.to(weights).flatten(1)[..., None]  # (..., B, H, 1)
    return per_text[..., 0].sum(dim=-2)


def can_measure_repeats(model: GPT, excluded: Sequence[int] = ()) -> bool:
    """Whether the metrics on repeated texts without the tokens in `excluded` can be measured."""
    tokens = model.embedding.num_embeddings - len(excluded)
    return model.block_size >= MIN_LENGTH and tokens >= MIN_VOCABULARY


class RepeatProbe:
    """Repeated random texts for a model, and the factors that turn attention weights into scores.
    They can be used again for every step of the training.

    `texts` is the number of texts. The texts do not contain the tokens in `excluded`.

    Raises UserError if `texts` is below 2, or if the model's `block_size` is below MIN_LENGTH or
    its vocabulary below MIN_VOCABULARY.
    """

    def __init__(self, model: GPT, *, excluded: Sequence[int] = (), texts: int = TEXTS) -> None:
        vocab_size, length = model.embedding.num_embeddings, min(model.block_size, MAX_LENGTH)
        if not can_measure_repeats(model, excluded) or texts < 2:
            tokens = vocab_size - len(excluded)
            sizes = f"block_size={model.block_size}, {tokens} tokens with text, texts={texts}"
            least = f"at least {MIN_VOCABULARY} tokens, 2 texts and block_size={MIN_LENGTH}"
            raise UserError(f"{sizes}: the induction metrics need {least}")
        options = {"vocab_size": vocab_size, "length": length, "texts": texts, "seed": 0}
        self.texts = repeated_texts(**options, excluded=excluded)
        self.induction = contrast(self.texts, skip=1)
        self.duplicate = contrast(self.texts, skip=0)
        self.prefix = target_factors(self.texts, skip=1)

    @torch.no_grad()
    def metrics(self, model: GPT) -> dict[str, Tensor]:
        """The metrics (L, H) of all heads of `model`:

        - `induction` and `duplicate` range from -1 to 1. Each is the mean weight from queries in
          the second copy to their targets, minus a baseline: the weight between the same positions
          in texts that repeat after another number of tokens. 1 means that a head gives all its
          weight beyond the first token to the targets, and no weight to the same positions in other
          texts. A query that rests counts as 0. Attention that depends only on positions, such as
          uniform attention, has the value 0.
        - `repeat_previous`, from 0 to 1: the metric `previous` of these texts.
        - `prefix_matching`, from 0 to 1: the mean weight on the targets of `induction`, without the
          baseline, as in Olsson 2022. The weight on the first token counts here.
        """
        tokens = self.texts.tokens.to(model.device)
        batches = torch.arange(len(tokens)).split(BATCH_SIZE)
        return self._means(
            [self._sums(capture(model, tokens[batch]).attention, batch) for batch in batches]
        )

    def uniform(self, visible: Tensor | None) -> dict[str, Tensor]:
        """The metrics of uniform attention (L, 1) over the keys in the mask `visible` of its texts,
        by default all earlier ones: then L is 1."""
        length, every = self.texts.tokens.size(1), torch.arange(len(self.texts.tokens))
        even = uniform(torch.ones(length, length), visible)
        even = even.expand(-1 if even.dim() == 5 else 1, len(every), 1, -1, -1)
        means = self._means([self._sums(even, every)])
        return means | dict.fromkeys(("induction", "duplicate"), torch.zeros(1, 1))

    def _means(self, sums: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        totals = {name: torch.stack([each[name] for each in sums]).sum(dim=0) for name in sums[0]}
        queries, texts = totals.pop("queries").clamp(min=1), len(self.texts.tokens)
        return {
            name: total / (queries if name == "repeat_previous" else texts)
            for name, total in totals.items()
        }

    def _sums(self, weights: Tensor, batch: Tensor) -> dict[str, Tensor]:
        """The metrics (L, H), summed over the texts `batch`, from their weights, and the number of
        queries of `repeat_previous`."""
        left, others, active = beyond_first(weights)
        left = left * active[..., None]
        before, queries = previous_mass(left, others)
        queries = (queries & active).expand_as(before)
        return {
            "induction": score(left, self.induction[batch]),
            "duplicate": score(left, self.duplicate[batch]),
            "repeat_previous": torch.where(queries, before, 0.0).sum(dim=(1, -1)),
            "prefix_matching": score(weights, self.prefix[batch]),
            "queries": queries.sum(dim=(1, -1)),
        }
