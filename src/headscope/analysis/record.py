"""The record of the heads of a model: what was measured, and the names that follow from it. Every
page, table and program reads this record, so each shows the same name for a head.

Shapes: L layers, H heads per layer.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from headscope.analysis.head_types import NAMED_QUERIES, NONE, HeadType, Thresholds, head_types
from headscope.analysis.headers import MAX_METRICS, MAX_TEXT
from headscope.analysis.metrics import METRICS, colour_ends
from headscope.analysis.own_metrics import COLUMNS
from headscope.analysis.snapshot import json_numbers
from headscope.config.parse import parse
from headscope.nn import GPT, AdditiveAttention, MultiHeadAttention
from headscope.nn.held import held_heads

STORED = ("step", "diversity", "windows", "tokens", "source", "uniform", "descriptions")
"""The fields that a file has as they are."""
Number = Annotated[float, -3.4e38, 3.4e38]
Size = Annotated[int, 1, 2**24]
"""The numbers that a file may have: float32 can express them."""


@dataclass(frozen=True, repr=False, kw_only=True)
class HeadRecord:
    """What was measured of all heads of one model, and their names.

    - `metrics`: the metrics by name, each a tensor (L, H).
    - `uniform`: the value of each metric of attention weights for uniform attention, layer by layer
      and head by head: over the keys that the queries of this head see, of those that do not rest.
    - `diversity`: how much the heads differ (see `headscope.analysis.diversity`).
    - `windows`, `tokens`: the number and the length of the windows; `source`: their origin.
    - `descriptions`: what the metrics of the user mean, by name.
    - `held`: whether each head is held; `untrained` (L, 1): see `untrained_unevenness`.
    - `digest`: a checksum of the weights; `step`: the training step, or None if it is unknown.
    - `thresholds`: those that give the names.
    - `types`: the name of each head, such as `previous-token`, with its score, layer by layer. Held
      heads have none, and nor has any head if fewer than NAMED_QUERIES tokens were measured.
    """

    metrics: dict[str, Tensor]
    uniform: dict[str, list[Number]]
    diversity: Number
    windows: Size
    tokens: Size
    source: str
    descriptions: dict[str, str]
    held: list[bool]
    untrained: Tensor
    digest: str = ""
    step: int | None = None
    thresholds: Thresholds = field(default_factory=Thresholds)
    types: list[HeadType] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "types", self._named())

    def _named(self) -> list[HeadType]:
        if not self.metrics:
            return [HeadType(NONE, 0.0, 0.0) for _ in self.held]
        types = head_types(
            self.metrics,
            self.uniform,
            thresholds=self.thresholds,
            untrained=self.untrained,
            queries=self.metrics["queries"],
        )
        scores = self.metrics["unevenness"].flatten().tolist()
        few = self.measured_tokens < NAMED_QUERIES
        return [
            HeadType(NONE, score, 0.0) if held or few else head_type
            for head_type, held, score in zip(types, self.held, scores, strict=True)
        ]

    def __repr__(self) -> str:
        texts = f"{self.windows} x {self.tokens} tokens of {self.source}"
        sizes = f"{len(self.metrics)} metrics of {len(self.heads)} heads"
        return f"<{type(self).__name__}: {sizes}, {texts}>"

    @property
    def heads(self) -> list[str]:
        """Which heads they are: L0H0, L0H1, ..., layer by layer."""
        layers, heads = next(iter(self.metrics.values())).shape
        return [f"L{layer}H{head}" for layer in range(layers) for head in range(heads)]

    @property
    def uniform_of_all(self) -> dict[str, float]:
        """The mean values of `uniform` over all heads."""
        return {name: sum(each) / len(each) for name, each in self.uniform.items()}

    @property
    def measured_tokens(self) -> int:
        return self.windows * self.tokens

    @property
    def ends(self) -> dict[str, tuple[float, float]]:
        """The limits of the colour scales. `queries` and `direct_effect` have none, and a metric of
        the user has the limits 0 and 1 if all its values are between them."""
        own = {name: self.metrics[name] for name in self.metrics.keys() & self.descriptions}
        free = [name for name, values in own.items() if values.min() < 0 or values.max() > 1]
        limited = [name for name in self.metrics if name not in ("queries", "direct_effect", *free)]
        return {name: colour_ends(name, self.tokens) for name in limited}

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
            "uniform": {name: json_numbers(values) for name, values in self.uniform.items()},
            "ends": {name: json_numbers(limits) for name, limits in self.ends.items()},
            "descriptions": self.descriptions,
        }

    def stored(self) -> dict[str, Any]:
        """Plain data for a file, which `record_from` reads."""
        metrics = {name: values.tolist() for name, values in self.metrics.items()}
        fields = {name: getattr(self, name) for name in STORED}
        return {**fields, "metrics": metrics, "thresholds": asdict(self.thresholds)}


def of_model(model: GPT) -> dict[str, Any]:
    """The fields of a record that its model decides."""
    untrained = [[untrained_unevenness(layer)] for layer in model.attentions]
    return {"held": held_heads(model), "untrained": torch.tensor(untrained)}


def unmeasured(model: GPT) -> HeadRecord:
    """A record without metrics and names."""
    nothing: Any = {"metrics": {}, "uniform": {}, "descriptions": {}}
    nothing |= {"diversity": 0.0, "windows": 0, "tokens": 0}
    return HeadRecord(**nothing, source="nothing yet", **of_model(model))


def record_from(entry: Any, model: GPT, digest: str) -> HeadRecord | None:
    """The record of `model` that `HeadRecord.stored` made plain. None if it is damaged, or that of
    a model of another size."""
    shape = (len(model.attentions), model.attentions[0].heads)
    try:
        json.dumps(entry, ensure_ascii=False).encode()  # refuses half of a surrogate pair
        metrics = {
            name: torch.tensor(np.array(values, dtype=float)).float().view(shape)
            for name, values in entry["metrics"].items()
            if name not in COLUMNS
        }
        fields = {name: entry[name] for name in (*STORED, "thresholds")} | of_model(model)
        fields |= {"metrics": metrics, "source": entry["source"][:80], "digest": digest}
        record = parse(HeadRecord, fields, composed=False)
    except (TypeError, KeyError, AttributeError, ValueError, RuntimeError, OverflowError):
        return None
    named: list[dict[str, Any]] = [metrics, record.uniform, record.descriptions]
    texts = [*chain(*named), *record.descriptions.values()]
    shown = max(map(len, named)) <= MAX_METRICS and all(len(text) <= MAX_TEXT for text in texts)
    finite = not any(values.isinf().any() for values in metrics.values())
    heads = all(len(values) == len(record.held) for values in record.uniform.values())
    usable = shown and finite and heads and metrics.keys() >= {*METRICS}
    return record if usable else None


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
