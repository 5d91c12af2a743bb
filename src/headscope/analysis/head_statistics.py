"""Measures all heads of a model: their metrics, their names and their similarity.

Shapes: L layers, H heads per layer, N windows, T tokens.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from headscope.analysis.circuits import weight_metrics
from headscope.analysis.direct_effects import direct_effects
from headscope.analysis.diversity import cosine_similarity
from headscope.analysis.head_outputs import Track
from headscope.analysis.head_types import NONE, HeadType, Thresholds, head_types
from headscope.analysis.metrics import METRICS, best_offset, colour_ends, offset_sums, uniform
from headscope.analysis.own_metrics import HeadMetric, description, own_metrics, own_sums
from headscope.analysis.repeats import TEXTS, RepeatProbe, can_measure_repeats
from headscope.analysis.tokens import TokenKinds, mass_on, targets_in
from headscope.nn import GPT, AdditiveAttention, MultiHeadAttention
from headscope.nn.capture import capture
from headscope.nn.held import held_heads
from headscope.show.viewer.snapshot import json_numbers

MAX_WEIGHTS_PER_HEAD = 2**22
"""Maximum number of attention weights per head in a batch of windows, to limit its memory."""
OFFSETS = "offset_sums"
MIN_QUERIES = 8
"""A metric that depends on the tokens, such as `punctuation`, gives names only if at least this
many queries see such a token. With fewer, a head would get the name by chance."""


@dataclass(frozen=True, repr=False)
class HeadStatistics:
    """Statistics of all heads of a model.

    - `metrics`: the metrics by name, each a tensor (L, H).
    - `uniform`: the value of each metric of attention weights for uniform attention.
    - `types`: the name of each head, such as `previous-token`, with its score, layer by layer.
    - `similarity` (L H, L H): the cosine similarity of each pair of heads. Empty if the statistics
      come from a file, which does not contain it.
    - `windows`, `tokens`: the number N and the length T of the windows; `source`: their origin.
    - `unjudged`: metrics that give no name, because too few queries see such a token.
    - `descriptions`: what the metrics of the user mean, by name.
    """

    metrics: dict[str, Tensor]
    uniform: dict[str, float]
    types: list[HeadType]
    similarity: Tensor
    windows: int
    tokens: int
    source: str
    unjudged: list[str]
    descriptions: dict[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        texts = f"{self.windows} x {self.tokens} tokens of {self.source}"
        return f"<HeadStatistics: {len(self.metrics)} metrics of {len(self.heads)} heads, {texts}>"

    @property
    def heads(self) -> list[str]:
        """Which heads they are: L0H0, L0H1, ..., layer by layer."""
        layers, heads = next(iter(self.metrics.values())).shape
        return [f"L{layer}H{head}" for layer in range(layers) for head in range(heads)]

    @property
    def ends(self) -> dict[str, tuple[float, float]]:
        """The limits of the colour scales. `direct_effect` has none, and a metric of the user has
        the limits 0 and 1 if all its values are between them."""
        own = {name: self.metrics[name] for name in self.metrics.keys() & self.descriptions}
        free = [name for name, values in own.items() if values.min() < 0 or values.max() > 1]
        limited = [name for name in self.metrics if name not in ("direct_effect", *free)]
        return {name: colour_ends(name, self.tokens) for name in limited}

    def header(self, more_metrics: Mapping[str, Tensor] | None = None) -> dict[str, Any]:
        """The entries of a snapshot's header with the names and metrics of all heads.
        `more_metrics` (L, H) are metrics that these statistics lack."""
        metrics = {**(more_metrics or {}), **self.metrics}
        return {
            "measured_tokens": self.windows * self.tokens,
            "measured_on": self.source,
            "names": [head_type.label for head_type in self.types],
            "uncertain": [int(head_type.uncertain) for head_type in self.types],
            "scores": json_numbers([head_type.score for head_type in self.types]),
            "ratios": json_numbers([head_type.ratio for head_type in self.types]),
            "metrics": {
                name: json_numbers(values.flatten().tolist()) for name, values in metrics.items()
            },
            "uniform": {name: json_numbers([value])[0] for name, value in self.uniform.items()},
            "ends": {name: json_numbers(limits) for name, limits in self.ends.items()},
            "descriptions": self.descriptions,
        }


def measure_heads(
    model: GPT,
    windows: Tensor,
    *,
    source: str = "these texts",
    kinds: TokenKinds | None = None,
    thresholds: Thresholds | None = None,
    repeats: RepeatProbe | None = None,
    uniform_metrics: dict[str, float] | None = None,
    own: Mapping[str, HeadMetric] | None = None,
    track: Track = iter,
) -> HeadStatistics:
    """Measure all metrics of all heads. Most metrics are averaged over `windows` (N, T) of tokens.

    The induction metrics are averaged over the repeated random texts of `repeats` instead, by
    default over TEXTS texts. They are omitted if `can_measure_repeats` is false. The metric
    `punctuation` is measured only if `kinds` is given, and `frequent` only if `kinds.frequent` is
    given. `uniform_metrics` are the values for uniform attention, if an earlier measurement on the
    same texts has them. `own` are metrics of the user, which give no names. Raises UserError if one
    has a wrong name or result (see `headscope.analysis.own_metrics`).
    """
    own = own_metrics(own)
    length = windows.size(1)
    ones = torch.ones(length, length, device=model.device)
    sums: dict[str, Tensor] = {}
    uniform_sums: dict[str, Tensor] = {}
    counts: dict[str, int] = {}  # of queries, for the metrics that depend on the tokens
    similarity, effects = torch.zeros(()), torch.zeros(())
    batch_size = max(1, MAX_WEIGHTS_PER_HEAD // length**2)
    for batch in track(windows.to(model.device).split(batch_size)):
        captured = capture(model, batch)
        weights = captured.attention  # (L, N, H, T, T)
        pushes = direct_effects(model, batch, captured.residual[-1], captured.outputs)
        effects = effects + len(batch) * pushes.cpu()
        visible = visible_in(model, batch)
        targets = targets_in(batch, kinds)
        sides = [(sums, weights)]
        if uniform_metrics is None:
            even = uniform(ones, visible).expand(1, len(batch), 1, -1, -1)
            sides.append((uniform_sums, even))
        for totals, maps in sides:
            for name, metric in {**METRICS, OFFSETS: offset_sums}.items():
                totals[name] = totals.get(name, 0) + metric(maps, visible).sum(dim=1).cpu()
            for name, target in targets.items():
                mass, count = mass_on(maps, target, visible)
                totals[name] = totals.get(name, 0) + mass.cpu()
                counts[name] = counts.get(name, 0) + int(count) * (totals is sums)
            for name, total in own_sums(own, maps.expand_as(weights), batch).items():
                totals[name] = totals.get(name, 0) + total
        heads = weights.transpose(0, 1).flatten(1, 2)  # (N, L H, T, T)
        similarity = similarity + cosine_similarity(heads, visible).sum(dim=0).cpu()
    repeats = repeats or repeat_probe(model, kinds, TEXTS)

    def means(totals: dict[str, Tensor]) -> dict[str, Tensor]:
        number = len(windows)
        averages = {name: x / max(1, counts.get(name, number)) for name, x in totals.items()}
        return averages | best_offset(averages.pop(OFFSETS), length)

    metrics = means(sums)
    if uniform_metrics is None:
        uniform_metrics = {name: float(value.mean()) for name, value in means(uniform_sums).items()}
        uniform_metrics |= repeats.uniform() if repeats else {}
    if repeats:
        metrics |= {name: metric.cpu() for name, metric in repeats.metrics(model).items()}
    metrics["direct_effect"] = effects / len(windows)
    metrics |= {name: metric.cpu() for name, metric in weight_metrics(model).items()}
    metrics |= {name: metrics.pop(name) for name in own}  # the last ones in tables
    unjudged = [name for name, count in counts.items() if count < MIN_QUERIES]
    return HeadStatistics(
        metrics=metrics,
        uniform=uniform_metrics,
        types=names_of(model, metrics, uniform_metrics, unjudged, thresholds),
        similarity=(similarity / len(windows)).clamp(0, 1),
        windows=len(windows),
        tokens=length,
        source=source,
        unjudged=unjudged,
        descriptions={name: description(metric) for name, metric in own.items()},
    )


def names_of(
    model: GPT,
    metrics: Mapping[str, Tensor],
    uniform: Mapping[str, float],
    unjudged: Sequence[str],
    thresholds: Thresholds | None = None,
) -> list[HeadType]:
    """The names of heads by their metrics, without `unjudged` ones. Held heads have no name."""
    judged = {name: metric for name, metric in metrics.items() if name not in unjudged}
    untrained = torch.tensor([[untrained_unevenness(layer)] for layer in model.attentions])
    types = head_types(judged, uniform, thresholds=thresholds, untrained=untrained)
    scores = metrics["unevenness"].flatten().tolist()
    return [
        HeadType(NONE, score, 0.0) if held else head_type
        for head_type, held, score in zip(types, held_heads(model), scores, strict=True)
    ]


def untrained_unevenness(layer: MultiHeadAttention) -> float:
    """An upper limit for the `unevenness` of untrained heads. Initial weights have the standard
    deviation 0.02, and inputs are normalized, so queries and keys have r = 0.02 sqrt(C), or 1 with
    `qk_norm`. Their scores then have s = scale sqrt(D) r^2, and those of additive attention at most
    scale |w| r, where |w| is about 1. With normal scores and many keys, unevenness is
    erf(s / sqrt(8))."""
    of_keys = 1.0 if layer.qk_norm else 0.02 * math.sqrt(layer.embed_dim)
    deviation = layer.scale * math.sqrt(layer.head_dim) * of_keys**2
    if isinstance(layer, AdditiveAttention):
        deviation = 1.25 * layer.scale * of_keys
    return 1.05 * math.erf(deviation / math.sqrt(8))


def visible_in(model: GPT, tokens: Tensor) -> Tensor | None:
    """The mask (N, 1, T, T) of the keys that each query sees in `tokens` (N, T), if the model keeps
    attention within documents. Otherwise None: a query sees its own and all earlier tokens."""
    mask = model.document_mask(tokens)
    return None if mask is None else mask.tril()


def repeat_probe(model: GPT, kinds: TokenKinds | None, texts: int) -> RepeatProbe | None:
    """`texts` repeated random texts without special tokens, or None (see `can_measure_repeats`)."""
    excluded = [] if kinds is None else kinds.special.nonzero()[:, 0].tolist()
    measurable = can_measure_repeats(model, excluded)
    return RepeatProbe(model, excluded=excluded, texts=texts) if measurable else None
