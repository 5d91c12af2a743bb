"""The tables of a report, as plain data and as CSV.

Shapes: L layers, H heads of a layer, N = L H.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from headscope.analysis.diversity import diversity, pairs_by_similarity, uniqueness
from headscope.analysis.largest import largest_weight
from headscope.analysis.study import HeadStatistics
from headscope.checkpoint import AttentionReading

PAIRS = 5
"""As many of the most and of the least alike pairs."""

UNIFORM = "uniform_"
"""Begins the columns that hold, in every row alike, what uniform attention gives."""


def head_rows(
    study: HeadStatistics, worth: Mapping[str, Tensor] | None = None
) -> list[dict[str, Any]]:
    """The figures of each head; `worth` holds more of them, (L, H) each, by name."""
    layers, heads = study.figures["self"].shape
    unique = uniqueness(study.similarity).view(layers, heads)
    numbers = {**study.figures, "uniqueness": unique, **(worth or {})}
    rows = []
    for number, (layer, head) in enumerate(np.ndindex(layers, heads)):
        values = {name: float(each[layer, head]) for name, each in numbers.items()}
        rows.append({"layer": layer, "head": head, "type": study.types[number], **values})
    return rows


def with_uniform(rows: Sequence[Mapping[str, Any]], study: HeadStatistics) -> list[dict[str, Any]]:
    """Rows of heads with one more column, `uniform_<figure>`, for every figure of the study: the
    value of a head that looks at all it sees alike."""
    uniform = {f"{UNIFORM}{name}": study.uniform[name] for name in study.figures}
    return [{**row, **uniform} for row in rows]


def column_rows(study: HeadStatistics, measured_on: Mapping[str, str]) -> list[dict[str, Any]]:
    """A row for each figure in the table of heads: the text it was `measured_on`, in words, and the
    value of uniform attention, where the figure has one."""
    return [
        {"figure": name, "measured_on": text, "uniform": study.uniform.get(name)}
        for name, text in measured_on.items()
    ]


def between_heads(study: HeadStatistics) -> dict[str, Any]:
    """How much the heads differ: `diversity`, and pairs with their cosine similarity."""
    pairs = [
        {"heads": [study.names[first], study.names[second]], "similarity": value}
        for first, second, value in pairs_by_similarity(study.similarity)
    ]
    return {
        "diversity": float(diversity(study.similarity)),
        "most_alike": pairs[:PAIRS],
        "least_alike": pairs[::-1][:PAIRS],
    }


def matrix_rows(matrix: Tensor, names: Sequence[str]) -> list[dict[str, Any]]:
    """A row for each head of a matrix (N, N), whose columns are the heads."""
    return [
        {"head": name, **dict(zip(names, row, strict=True))}
        for name, row in zip(names, matrix.tolist(), strict=True)
    ]


def largest_weight_rows(reading: AttentionReading) -> list[dict[str, Any]]:
    """The largest weight of every head's map, and the query and key it stands between."""
    largest = largest_weight(reading.weights)
    rows = []
    for place in np.ndindex(*largest.weight.shape):
        query, key = int(largest.query[place]), int(largest.key[place])
        rows.append(
            {
                "layer": place[0],
                "head": place[1],
                "weight": float(largest.weight[place]),
                "query": query,
                "query_token": reading.labels[query],
                "key": key,
                "key_token": reading.labels[key],
            }
        )
    return rows


def history_rows(history: Sequence[tuple[int, HeadStatistics]]) -> list[dict[str, Any]]:
    """The table of heads after each of some steps."""
    return [
        {"step": step, **row}
        for step, study in history
        for row in with_uniform(head_rows(study), study)
    ]


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
