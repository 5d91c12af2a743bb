"""Measures all heads of a model: their metrics, their names and their similarity.

Shapes: L layers, H heads per layer, N windows, T tokens.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from headscope.analysis.diversity import cosine_similarity
from headscope.analysis.head_types import HeadType, Thresholds, head_types
from headscope.analysis.metrics import head_metrics, uniform, uniform_metrics
from headscope.analysis.repeats import (
    MIN_LENGTH,
    TEXTS,
    RepeatProbe,
    text_length,
    uniform_repeat_metrics,
)
from headscope.analysis.tokens import TokenKinds, mass_on, targets_in
from headscope.nn import GPT
from headscope.nn.capture import attention_weights

MAX_WEIGHTS_PER_HEAD = 2**22
"""Maximum number of attention weights per head in a batch of windows. It limits the memory of a
batch."""


@dataclass(frozen=True)
class HeadStatistics:
    """Statistics of all heads of a model.

    - `metrics`: the metrics by name, each a tensor (L, H).
    - `uniform`: the value of each metric for uniform attention.
    - `types`: the name of each head, such as `previous-token`, with its score, layer by layer.
    - `similarity` (L H, L H): the cosine similarity of each pair of heads.
    - `tokens`: the length T of the windows.
    """

    metrics: dict[str, Tensor]
    uniform: dict[str, float]
    types: list[HeadType]
    similarity: Tensor
    tokens: int

    @property
    def heads(self) -> list[str]:
        """Which heads they are: L0H0, L0H1, ..., layer by layer."""
        layers, heads = next(iter(self.metrics.values())).shape
        return [f"L{layer}H{head}" for layer in range(layers) for head in range(heads)]


def measure_heads(
    model: GPT,
    windows: Tensor,
    *,
    kinds: TokenKinds | None = None,
    thresholds: Thresholds | None = None,
    repeats: RepeatProbe | None = None,
    track: Callable[[Iterable[Tensor]], Iterable[Tensor]] = iter,
) -> HeadStatistics:
    """Measure all metrics of all heads. Most metrics are averaged over `windows` (N, T) of tokens.

    The induction metrics are averaged over the repeated random texts of `repeats` instead, by
    default over TEXTS texts. They are omitted if the model's `block_size` is below `MIN_LENGTH`.
    The metric `punctuation` is measured only if `kinds` is given, and `frequent` only if
    `kinds.frequent` is given. `track` wraps the iterable of batches of windows, for example to show
    progress.
    """
    length = windows.size(1)
    uniform_weights = uniform(torch.ones(length, length, device=model.device))
    sums: dict[str, Tensor] = {}
    # For metrics whose value for uniform attention depends on the text.
    uniform_sums: dict[str, Tensor] = {}
    queries: dict[str, int] = {}
    similarity = torch.zeros(())
    batch_size = max(1, MAX_WEIGHTS_PER_HEAD // length**2)
    for batch in track(windows.to(model.device).split(batch_size)):
        weights = attention_weights(model, batch)  # (L, N, H, T, T)
        for name, metric in head_metrics(weights).items():
            sums[name] = sums.get(name, 0) + metric.sum(dim=1).cpu()
        for name, targets in targets_in(batch, kinds).items():
            mass, count = mass_on(weights, targets)
            uniform_mass, _ = mass_on(uniform_weights.expand(len(batch), 1, -1, -1), targets)
            sums[name] = sums.get(name, 0) + mass.cpu()
            uniform_sums[name] = uniform_sums.get(name, 0) + uniform_mass.cpu()
            queries[name] = queries.get(name, 0) + int(count)
        heads = weights.transpose(0, 1).flatten(1, 2)  # (N, L H, T, T)
        similarity = similarity + cosine_similarity(heads).sum(dim=0).cpu()
    metrics = {
        name: total / max(1, queries.get(name, len(windows))) for name, total in sums.items()
    }
    baseline = uniform_metrics(length)
    baseline |= {name: float(total) / max(1, queries[name]) for name, total in uniform_sums.items()}
    if text_length(model) >= MIN_LENGTH:
        repeats = repeats or repeat_probe(model, kinds, TEXTS)
        metrics |= {name: metric.cpu() for name, metric in repeats.metrics(model).items()}
        baseline |= uniform_repeat_metrics(text_length(model))
    return HeadStatistics(
        metrics=metrics,
        uniform=baseline,
        types=head_types(metrics, baseline, thresholds=thresholds),
        similarity=(similarity / len(windows)).clamp(0, 1),
        tokens=length,
    )


def repeat_probe(model: GPT, kinds: TokenKinds | None, texts: int) -> RepeatProbe:
    """Repeated random texts without special tokens. `texts` is the number of texts."""
    excluded = [] if kinds is None else kinds.special.nonzero()[:, 0].tolist()
    return RepeatProbe(model, excluded=excluded, texts=texts)
