"""All that is known of a model's heads at once: figures, names, and how alike they are.

Shapes: L layers, H heads of a layer, N windows, T tokens.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from headscope.analysis.diversity import cosine_similarity
from headscope.analysis.head_types import Thresholds, head_types
from headscope.analysis.metrics import head_figures, uniform, uniform_figures
from headscope.analysis.repeats import (
    SHORTEST,
    TEXTS,
    repeat_figures,
    text_length,
    uniform_repeat_figures,
)
from headscope.analysis.tokens import TokenKinds, mass_on, targets_in
from headscope.nn import GPT
from headscope.nn.capture import attention_weights

NUMBERS_AT_ONCE = 2**22
"""Weights of one head at once, over all windows that are read together."""


@dataclass(frozen=True)
class HeadStatistics:
    """`figures` by name, (L, H) each; `uniform`, the value that each takes for a head that looks at
    all it sees alike; `types`, a word for each head, and `similarity`, the cosine of any two
    (L H, L H), layer by layer. `tokens` is the length T of the windows."""

    figures: dict[str, Tensor]
    uniform: dict[str, float]
    types: list[str]
    similarity: Tensor
    tokens: int

    @property
    def names(self) -> list[str]:
        """L0H0, L0H1, ..., layer by layer."""
        layers, heads = next(iter(self.figures.values())).shape
        return [f"L{layer}H{head}" for layer in range(layers) for head in range(heads)]


def study_heads(
    model: GPT,
    windows: Tensor,
    *,
    kinds: TokenKinds | None = None,
    thresholds: Thresholds | None = None,
    texts: int = TEXTS,
    track: Callable[[Iterable[Tensor]], Iterable[Tensor]] = iter,
) -> HeadStatistics:
    """Figures of every head, means over `windows` (N, T) of tokens and, of induction, over
    `texts` repeated random texts; none of induction where `block_size` is too short to repeat, and
    none of punctuation and frequent tokens without the `kinds` of tokens.
    `track` is given the windows, some at a time, to show how far it is."""
    length = windows.size(1)
    even = uniform(torch.ones(length, length, device=model.device))
    sums: dict[str, Tensor] = {}
    even_sums: dict[str, Tensor] = {}  # of uniform attention, where that depends on the text
    queries: dict[str, int] = {}
    alike = torch.zeros(())
    for some in track(windows.to(model.device).split(max(1, NUMBERS_AT_ONCE // length**2))):
        weights = attention_weights(model, some)  # (L, N, H, T, T)
        for name, figure in head_figures(weights).items():
            sums[name] = sums.get(name, 0) + figure.sum(dim=1).cpu()
        for name, targets in targets_in(some, kinds).items():
            mass, count = mass_on(weights, targets)
            even_mass, _ = mass_on(even.expand(len(some), 1, -1, -1), targets)
            sums[name] = sums.get(name, 0) + mass.cpu()
            even_sums[name] = even_sums.get(name, 0) + even_mass.cpu()
            queries[name] = queries.get(name, 0) + int(count)
        heads = weights.transpose(0, 1).flatten(1, 2)  # (N, L H, T, T)
        alike = alike + cosine_similarity(heads).sum(dim=0).cpu()
    figures = {
        name: total / max(1, queries.get(name, len(windows))) for name, total in sums.items()
    }
    baseline = uniform_figures(length)
    baseline |= {name: float(total) / max(1, queries[name]) for name, total in even_sums.items()}
    if text_length(model) >= SHORTEST:
        leave_out = [] if kinds is None else kinds.special.nonzero()[:, 0].tolist()
        repeats = repeat_figures(model, leave_out=leave_out, texts=texts)
        figures |= {name: figure.cpu() for name, figure in repeats.items()}
        baseline |= uniform_repeat_figures(text_length(model))
    return HeadStatistics(
        figures=figures,
        uniform=baseline,
        types=head_types(figures, baseline, thresholds=thresholds),
        similarity=(alike / len(windows)).clamp(0, 1),
        tokens=length,
    )
