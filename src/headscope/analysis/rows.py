"""Tables as DataFrames of pandas. It is imported when a table is made, which takes 0.3 s."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pandas import DataFrame as DataFrame
else:
    DataFrame = Any  # in annotations

Rows = list[dict[str, Any]]


def data_frame(data: Any, columns: Sequence[str] | None = None) -> DataFrame:
    """A DataFrame of rows, or of columns by name. `columns` are needed if there may be no rows."""
    from pandas import DataFrame

    return DataFrame(data, columns=columns)


def per_cell(arrays: Mapping[str, Any], *axes: str) -> DataFrame:
    """One row per cell of arrays of one shape, with its indices (`axes`) and its value in each."""
    from pandas import MultiIndex

    shape = next(iter(arrays.values())).shape
    table = data_frame({name: array.flatten().tolist() for name, array in arrays.items()})
    return table.set_index(MultiIndex.from_product(map(range, shape), names=axes)).reset_index()


def per_head(metrics: Mapping[str, Any]) -> DataFrame:
    """One row per head, layer by layer, with its metrics, each a tensor (layers, heads)."""
    return per_cell(metrics, "layer", "head")
