"""Tables of heads: rows of plain data, and DataFrames of pandas.

Shapes: L layers, H heads per layer.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

if TYPE_CHECKING:
    from pandas import DataFrame

Rows = list[dict[str, Any]]


def data_frame(data: Any, columns: Sequence[str] | None = None) -> "DataFrame":
    """A DataFrame of rows, or of columns by name. `columns` are needed if there may be no rows."""
    from pandas import DataFrame  # takes 0.3 s

    return DataFrame(data, columns=columns)


def per_head(metrics: Mapping[str, Tensor], types: Sequence[str] = ()) -> Rows:
    """One row per head, layer by layer, with its `types` and metrics, each a tensor (L, H)."""
    layers, heads = next(iter(metrics.values())).shape
    rows: Rows = []
    for number, (layer, head) in enumerate(np.ndindex(layers, heads)):
        names = {"type": types[number]} if types else {}
        values = {name: float(metric[layer, head]) for name, metric in metrics.items()}
        rows.append({"layer": layer, "head": head, **names, **values})
    return rows


def per_metric(metrics: Mapping[str, Tensor]) -> Rows:
    """One row per head and metric, with the columns layer, head, metric and value."""
    return [
        {"layer": layer, "head": head, "metric": name, "value": float(values[layer, head])}
        for name, values in metrics.items()
        for layer, head in np.ndindex(*values.shape)
    ]
