"""All that is known of a model's heads at once: figures, names, and how alike they are.

Shapes: L layers, H heads of a layer, N windows, T tokens.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from headscope.analysis.capture import attention_weights
from headscope.analysis.diversity import cosine_similarity
from headscope.analysis.head_types import Thresholds, head_types
from headscope.analysis.metrics import head_figures
from headscope.analysis.repeats import TEXTS, longest_period, repeat_figures
from headscope.nn import GPT

NUMBERS_AT_ONCE = 2**22
"""Weights of one head at once, over all windows that are read together."""


@dataclass(frozen=True)
class Study:
    """`figures` by name, (L, H) each; `types`, a word for each head, and `similarity`, the cosine
    of any two (L H, L H), layer by layer."""

    figures: dict[str, Tensor]
    types: list[str]
    similarity: Tensor

    @property
    def names(self) -> list[str]:
        """L0H0, L0H1, ..., layer by layer."""
        layers, heads = next(iter(self.figures.values())).shape
        return [f"L{layer}H{head}" for layer in range(layers) for head in range(heads)]


def study_heads(
    model: GPT,
    windows: Tensor,
    *,
    thresholds: Thresholds | None = None,
    texts: int = TEXTS,
    track: Callable[[Iterable[Tensor]], Iterable[Tensor]] = iter,
) -> Study:
    """Figures of every head, means over `windows` (N, T) of tokens and, of induction, over
    `texts` repeated random texts; none of induction where `block_size` is too short to repeat.
    `track` is given the windows, some at a time, to show how far it is."""
    length = windows.size(1)
    sums: dict[str, Tensor] = {}
    alike = torch.zeros(())
    for some in track(windows.to(model.device).split(max(1, NUMBERS_AT_ONCE // length**2))):
        weights = attention_weights(model, some)  # (L, N, H, T, T)
        for name, figure in head_figures(weights).items():
            sums[name] = sums.get(name, 0) + figure.sum(dim=1).cpu()
        heads = weights.transpose(0, 1).flatten(1, 2)  # (N, L H, T, T)
        alike = alike + cosine_similarity(heads).sum(dim=0).cpu()
    figures = {name: total / len(windows) for name, total in sums.items()}
    period = longest_period(model)
    if period >= 2:
        figures |= {name: f.cpu() for name, f in repeat_figures(model, texts=texts).items()}
    return Study(
        figures=figures,
        types=head_types(figures, tokens=length, period=period, thresholds=thresholds),
        similarity=alike / len(windows),
    )
