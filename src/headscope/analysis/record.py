"""The record of the heads of a model: what was measured, and the names that follow from it. Every
page, table and program reads this record, so each shows the same name for a head.

Shapes: L layers, H heads per layer.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headscope.analysis.head_statistics import HeadStatistics
from headscope.analysis.head_types import NONE, HeadType, Thresholds, head_types
from headscope.analysis.headers import MAX_METRICS, MAX_TEXT
from headscope.analysis.metrics import METRICS
from headscope.analysis.own_metrics import COLUMNS
from headscope.analysis.snapshot import json_numbers
from headscope.config.parse import parse
from headscope.nn import GPT, AdditiveAttention, MultiHeadAttention
from headscope.nn.held import held_heads

STORED = ("step", "diversity", "windows", "tokens", "source", "uniform", "unjudged", "descriptions")
"""The fields that a file has as they are."""
NAMED_TOKENS = 64
"""With fewer measured tokens, no head gets a name."""


@dataclass(frozen=True, repr=False, kw_only=True)
class HeadRecord(HeadStatistics):
    """The statistics of all heads of one model, and their names.

    - `digest`: a checksum of the weights; `step`: the training step, or None if it is unknown.
    - `types`: the name of each head, such as `previous-token`, with its score, layer by layer.
    - `thresholds`: those that give the names.
    """

    digest: str
    step: int | None
    types: list[HeadType]
    thresholds: Thresholds

    def renamed(self, model: GPT, thresholds: Thresholds) -> "HeadRecord":
        """This record of `model`, with the names that other thresholds give."""
        return replace(self, types=types_of(self, model, thresholds), thresholds=thresholds)

    def header(self, more_metrics: Mapping[str, Tensor] | None = None) -> dict[str, Any]:
        """The entries of a snapshot's header with the names and metrics of all heads.
        `more_metrics` (L, H) are metrics that this record lacks."""
        metrics = {**(more_metrics or {}), **self.metrics}
        return {
            "measured_tokens": self.measured_tokens,
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

    def stored(self) -> dict[str, Any]:
        """Plain data for a file, which `record_from` reads."""
        metrics = {name: values.tolist() for name, values in self.metrics.items()}
        fields = {name: getattr(self, name) for name in STORED}
        return {**fields, "metrics": metrics, "thresholds": asdict(self.thresholds)}


def unmeasured(model: GPT) -> HeadRecord:
    """A record without metrics and names."""
    names = [HeadType(NONE, 0.0, 0.0)] * len(held_heads(model))
    more: Any = {"digest": "", "step": None, "types": names, "thresholds": Thresholds()}
    return HeadRecord({}, {}, 0.0, 0, 0, "nothing yet", [], {}, **more)


def record_of(
    statistics: HeadStatistics,
    model: GPT,
    *,
    digest: str = "",
    step: int | None = None,
    thresholds: Thresholds | None = None,
) -> HeadRecord:
    """The record of `model`, whose heads have these statistics."""
    used = thresholds or Thresholds()
    types = types_of(statistics, model, used)
    more: Any = {"digest": digest, "step": step, "types": types, "thresholds": used}
    return HeadRecord(**vars(statistics), **more)


def types_of(statistics: HeadStatistics, model: GPT, thresholds: Thresholds) -> list[HeadType]:
    """The names of the heads of `model`. Held heads have none, and nor has any head if fewer than
    NAMED_TOKENS tokens were measured."""
    metrics, unjudged = statistics.metrics, statistics.unjudged
    judged = {name: metric for name, metric in metrics.items() if name not in unjudged}
    untrained = torch.tensor([[untrained_unevenness(layer)] for layer in model.attentions])
    types = head_types(judged, statistics.uniform, thresholds=thresholds, untrained=untrained)
    scores = metrics["unevenness"].flatten().tolist()
    few = statistics.measured_tokens < NAMED_TOKENS
    return [
        HeadType(NONE, score, 0.0) if held or few else head_type
        for head_type, held, score in zip(types, held_heads(model), scores, strict=True)
    ]


def record_from(entry: Any, model: GPT, digest: str) -> HeadRecord | None:
    """The record of `model` that `HeadRecord.stored` made plain. None if it is damaged, or that of
    a model of another size."""
    shape = (len(model.attentions), model.attentions[0].heads)
    try:
        metrics = {
            encodable(name): torch.tensor(np.array(values, dtype=float)).float().view(shape)
            for name, values in entry["metrics"].items()
            if len(name) <= MAX_TEXT and name not in COLUMNS
        }
        uniform = {encodable(name): float(value) for name, value in entry["uniform"].items()}
        diversity = float(entry["diversity"])
        every = torch.tensor([*uniform.values(), diversity], dtype=torch.float32)
        numbers = [every, *metrics.values()]
        if any(each.isinf().any() for each in numbers):  # also 1e308, which is too large
            return None
        sizes = [int(entry[name]) for name in ("windows", "tokens")]
        about = entry["descriptions"].items()
        descriptions = {encodable(x): encodable(y)[:MAX_TEXT] for x, y in about}
        thresholds = parse(Thresholds, entry["thresholds"], "thresholds", composed=False)
        usable = metrics.keys() >= METRICS.keys() and min(sizes) > 0 and max(sizes) < 2**24
        if not usable or max(len(metrics), len(uniform), len(descriptions)) > MAX_METRICS:
            return None
        statistics = HeadStatistics(
            metrics=metrics,
            uniform=uniform,
            diversity=diversity,
            windows=sizes[0],
            tokens=sizes[1],
            source=encodable(entry["source"])[:80],
            unjudged=[str(name) for name in entry["unjudged"]],
            descriptions=descriptions,
        )
        step = None if entry["step"] is None else int(entry["step"])
        return record_of(statistics, model, digest=digest, step=step, thresholds=thresholds)
    except (TypeError, KeyError, AttributeError, ValueError, RuntimeError, OverflowError):
        return None


def encodable(text: Any) -> str:
    """A text from a file. Raises ValueError if it has half of a surrogate pair."""
    return str(text).encode().decode()


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
