"""Makes snapshots for the attention viewer from readings and metrics of heads."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from headscope.analysis.activations import Activations
from headscope.analysis.head_statistics import HeadStatistics
from headscope.analysis.metrics import colour_scales
from headscope.analysis.predictions import predict
from headscope.viewer.snapshot import LISTED, Snapshot, json_numbers, snapshot


def heads_header(
    statistics: HeadStatistics, more_metrics: Mapping[str, Tensor] | None = None
) -> dict[str, Any]:
    """The entries of a header with the names and metrics of all heads. `more_metrics` (L, H) are
    metrics that `statistics` lacks."""
    metrics, types = {**(more_metrics or {}), **statistics.metrics}, statistics.types
    return {
        "measured_tokens": statistics.windows * statistics.tokens,
        "measured_on": statistics.source,
        "names": [head_type.label for head_type in types],
        "uncertain": [int(head_type.uncertain) for head_type in types],
        "scores": json_numbers([head_type.score for head_type in types]),
        "ratios": json_numbers([head_type.ratio for head_type in types]),
        "metrics": {name: json_numbers(each.flatten().tolist()) for name, each in metrics.items()},
    }


def snapshot_of(
    reading: Activations,
    statistics: HeadStatistics,
    *,
    shown: int | None = None,
    text_tokens: int | None = None,
    more_metrics: Mapping[str, Tensor] | None = None,
    switched: Sequence[str] = (),
    targets: Mapping[int, int] | None = None,
    count: int = LISTED,
    exact: Sequence[int] | None = None,
    label_of: Callable[[int], str] | None = None,
) -> Snapshot:
    """The snapshot of the first `shown` tokens of a reading, by default of all. `text_tokens` is
    the number of tokens before the text was shortened. `switched` are the heads that are switched
    off. `targets` and `count` are those of `Reading.predictions`, and `exact` and
    `label_of` those of `headscope.viewer.snapshot.snapshot`."""
    tokens = shown or len(reading.tokens)
    ends = colour_scales(statistics.metrics, statistics.tokens)
    header = {
        "step": reading.step,
        "labels": reading.labels[:tokens],
        "text_tokens": text_tokens or len(reading.tokens),
        "losses": json_numbers(reading.losses[: tokens - 1].tolist()),
        "switched": list(switched),
        **heads_header(statistics, more_metrics),
        "uniform": dict(
            zip(statistics.uniform, json_numbers(statistics.uniform.values()), strict=True)
        ),
        "ends": {name: json_numbers(pair) for name, pair in ends.items()},
    }
    found = predict(reading, targets or reading.targets(tokens), count=count, layers=exact)
    return snapshot(
        header,
        reading.attention[..., :tokens, :tokens].detach().float().cpu().numpy(),
        found,
        label_of or reading.tokenizer.label,
        exact,
    )
