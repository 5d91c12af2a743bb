"""Makes snapshots for the attention viewer from attention weights and metrics of heads."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from headscope.analysis.head_statistics import HeadStatistics
from headscope.analysis.metrics import colour_scales
from headscope.viewer.predictions import Predictions
from headscope.viewer.snapshot import snapshot_parts


def snapshot_of(
    weights: Tensor,
    statistics: HeadStatistics,
    *,
    step: int,
    labels: Sequence[str],
    text_tokens: int,
    more_metrics: Mapping[str, Tensor] | None = None,
    predictions: Predictions | None = None,
) -> list[bytes]:
    """The snapshot of attention weights (L, H, T, T) after `step` steps. `labels`, `text_tokens`
    and `predictions` are explained in `snapshot_parts`. `more_metrics` (L, H) are metrics that
    `statistics` lacks."""
    metrics = {**(more_metrics or {}), **statistics.metrics}
    return snapshot_parts(
        weights.detach().float().cpu().numpy(),
        step=step,
        labels=labels,
        text_tokens=text_tokens,
        measured_tokens=statistics.windows * statistics.tokens,
        names=[head_type.label for head_type in statistics.types],
        scores=[head_type.score for head_type in statistics.types],
        ratios=[head_type.ratio for head_type in statistics.types],
        metrics={name: each.flatten().tolist() for name, each in metrics.items()},
        uniform=statistics.uniform,
        ends=colour_scales(statistics.metrics, statistics.tokens),
        predictions=predictions,
    )
