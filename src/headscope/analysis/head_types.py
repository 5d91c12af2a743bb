"""Gives each head a name, such as `previous-token`, derived from its metrics.

Metrics are compared by their excess over uniform attention: (metric - u) / (1 - u), where u is the
value of the metric for uniform attention. It is about 0 in an untrained model, and at most 1.

The names are based on Voita 2019 (positional heads, rare tokens), Clark 2019 (punctuation), Xiao
2023 (first token, other sinks), Olsson 2022 (induction), Wang 2022 (duplicate token) and Vig 2019
(distance). The thresholds are our own.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

NARROW = {
    "self": "self",
    "previous": "previous-token",
    "induction": "induction",
    "same_token": "same-token",
    "punctuation": "punctuation",
    "single_key": "single-key",
    "fixed_offset": "fixed-offset",
}
"""Names of heads that attend to few keys, by metric. If several names apply, the head gets the name
with the largest ratio of excess to threshold."""

SOME_QUERIES = {"induction", "same_token", "punctuation"}
"""Metrics that are averaged over only a few queries, or over other texts. One of them can be high
although the attention on the text as a whole is nearly uniform."""

OTHER_TEXTS = {"induction"}
"""Metrics of other texts. They give a name also if hardly a query of these texts does not rest."""

BROAD = {
    "local": "local",
    "frequent": "frequent-token",
    "rare": "rare-token",
    "short_range": "short-range",
}
"""Names of heads that attend mostly to some kind of key, such as frequent tokens, by metric. If
several names apply, the head gets the first of them."""

FIRST, GLOBAL, MIXED, NONE = "first-token", "global", "mixed", "-"
DECIDED_BY = {name: metric for metric, name in (NARROW | BROAD).items()}
DECIDED_BY |= {FIRST: "first"}
DECIDED_BY |= {"rare-token": "frequent", "short-range": "distance", GLOBAL: "global"}
DECIDED_BY |= {MIXED: "unevenness", NONE: "unevenness"}
"""The metric that decides each name."""
NEAR = 0.1
"""A name is uncertain if a value that decides it is nearer to its threshold than this share."""


NAMED_QUERIES = 64
"""With fewer queries that do not rest, only OTHER_TEXTS and `first` give names."""
Threshold = Annotated[float, 0.001, 1]


@dataclass(frozen=True)
class Thresholds:
    """The threshold of each head name: the minimum excess of a metric over uniform attention.

    Two thresholds are compared with a metric itself instead of its excess. A head is named `global`
    only if its metric `global` is at least `spread`. A head whose metric `unevenness` is below
    `even` attends nearly uniformly: only `first` and the metrics in SOME_QUERIES can give it a
    name.

    The defaults of `frequent` and `rare` are about 1/3. With this excess, the frequent (or the
    rare) half of the text gets 2/3 of the weight. With uniform attention, it gets 1/2.
    """

    self: Threshold = 0.4
    previous: Threshold = 0.4
    first: Threshold = 0.4
    induction: Threshold = 0.3
    same_token: Threshold = 0.3
    punctuation: Threshold = 0.4
    single_key: Threshold = 0.4
    fixed_offset: Threshold = 0.4
    local: Threshold = 0.5
    frequent: Threshold = 0.33
    rare: Threshold = 0.33
    short_range: Threshold = 0.5
    spread: Threshold = 0.5
    even: Threshold = 0.1


@dataclass(frozen=True)
class HeadType:
    """The name of a head, and how clearly it applies.

    - `score`: the metric that decides the name. For rare-token, this is 1 - `frequent`. For
      short-range, it is the share by which the mean distance is shorter than for uniform attention.
      For mixed heads and heads without a name, it is `unevenness`.
    - `ratio`: the excess of this metric divided by its threshold, at least 1. It is 0 for heads
      without a name, and for global and mixed, which apply if no other name does.
    - `offset`: for a fixed-offset head, how many tokens it looks back. Otherwise 0.
    - `uncertain`: whether a value that decides the name is near its threshold.
    """

    name: str
    score: float
    ratio: float
    offset: int = 0
    uncertain: bool = False

    @property
    def label(self) -> str:
        """The name, or for a fixed-offset head the offset, such as `8 back`."""
        return f"{self.offset} back" if self.offset else self.name


def head_types(
    metrics: Mapping[str, Tensor],
    uniform: Mapping[str, Sequence[float]],
    *,
    thresholds: Thresholds | None = None,
    untrained: Tensor | float = 0.0,
    queries: Tensor | float = math.inf,
) -> list[HeadType]:
    """The names of all heads, layer by layer.

    `metrics` contains the metrics of `head_metrics`. It may also contain the metrics of
    `RepeatProbe` and the metrics that `targets_in` lists. A metric that is NaN gives no name.
    `uniform` contains the value of each metric for uniform attention, for each head or each layer.
    `untrained`, a number or (L, H), is the
    `unevenness` of untrained heads. `queries`, a number or (L, H), is how many queries do not rest.
    A metric gives its name if its excess is at least its threshold. A head gets the first of these
    names:

    1. The name in NARROW with the largest ratio of excess to threshold. If `unevenness` is below
       `even`, only the metrics in SOME_QUERIES give a name, and if fewer than NAMED_QUERIES queries
       do not rest, only those in OTHER_TEXTS.
    2. In these two cases, "first-token", or "-" (no name) if the excess of `first` is below its
       threshold: the head only rests, or its attention is nearly uniform.
    3. The first name in BROAD.
    4. "-" if `unevenness` is below `untrained`.
    5. "global" if the metric `global` is at least the threshold `spread`, otherwise "mixed".

    See docs/glossary.md for all names.
    """
    thresholds = thresholds or Thresholds()
    flat = {metric: values.flatten() for metric, values in metrics.items()}
    excesses = {
        metric: excess(metrics[metric], uniform[metric])
        for metric in ("first", *NARROW, *BROAD)
        if metric in flat and metric in uniform
    }
    distance = of_each_head(uniform["distance"], metrics["distance"]).clamp(min=1e-6)
    excesses["short_range"] = (1 - flat["distance"] / distance).float()
    scores = flat | {"short_range": excesses["short_range"]}
    if "frequent" in flat:
        scores["rare"] = 1 - flat["frequent"]
        excesses["rare"] = excess(
            1 - metrics["frequent"], [1 - each for each in uniform["frequent"]]
        )
    ratios = {metric: value / getattr(thresholds, metric) for metric, value in excesses.items()}
    least, judged = (
        torch.as_tensor(given).expand_as(metrics["unevenness"]).flatten()
        for given in (untrained, queries)
    )
    return [
        _head_type(
            {name: float(each[head]) for name, each in ratios.items() if not each[head].isnan()},
            {metric: float(score[head]) for metric, score in scores.items()},
            thresholds,
            float(least[head]),
            few=bool(judged[head] < NAMED_QUERIES),
        )
        for head in range(len(flat["unevenness"]))
    ]


def excess(metric: Tensor, uniform: Sequence[float]) -> Tensor:
    """Rescale a metric (L, H), so that 0 is its value for uniform attention and 1 is its maximum.
    Returns (L H,)."""
    even = of_each_head(uniform, metric)
    return (metric.flatten() - even.float()) / (1 - even).clamp(min=1e-6).float()


def of_each_head(uniform: Sequence[float], metric: Tensor) -> Tensor:
    """The values of uniform attention (L H,), from values of all heads, layers, or of the model."""
    even = torch.tensor(uniform, dtype=torch.float64)
    return even.repeat_interleave(metric.numel() // len(even))


def _head_type(
    ratios: Mapping[str, float],
    scores: Mapping[str, float],
    thresholds: Thresholds,
    untrained: float,
    *,
    few: bool,
) -> HeadType:
    """The name of one head. `ratios` are the excesses divided by their thresholds. `few` is whether
    hardly a query does anything but rest."""
    unevenness, even, spread = scores["unevenness"], thresholds.even, thresholds.spread
    first = ratios.get("first", 0.0)
    alike = unevenness < even
    judged = ratios.keys() & (OTHER_TEXTS if few else SOME_QUERIES if alike else NARROW.keys())
    narrow = max([name for name in NARROW if name in judged], key=ratios.__getitem__, default="")
    best = ratios.get(narrow, 0.0)
    if best >= 1:
        offset = int(scores["offset"]) if narrow == "fixed_offset" else 0
        return HeadType(NARROW[narrow], scores[narrow], best, offset, uncertain=best < 1 + NEAR)
    near = best > 1 - NEAR or abs(unevenness - even) < NEAR * even
    if (few or alike) and first >= 1:
        return HeadType(FIRST, scores["first"], first, uncertain=near or first < 1 + NEAR)
    if few or alike:
        return HeadType(NONE, unevenness, 0.0, uncertain=near or first > 1 - NEAR)
    for metric, name in BROAD.items():
        ratio = ratios.get(metric, 0.0)
        near = near or abs(ratio - 1) < NEAR
        if ratio >= 1:
            return HeadType(name, scores[metric], ratio, uncertain=near)
    near = near or abs(unevenness - untrained) < NEAR * untrained
    if unevenness < untrained:
        return HeadType(NONE, unevenness, 0.0, uncertain=near)
    near = near or abs(scores["global"] - spread) < NEAR * spread
    if scores["global"] >= spread:
        return HeadType(GLOBAL, scores["global"], 0.0, uncertain=near)
    return HeadType(MIXED, unevenness, 0.0, uncertain=near)
