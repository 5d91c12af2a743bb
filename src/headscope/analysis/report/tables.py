"""The tables of a report, as plain data and as CSV.

Shapes: L layers, H heads per layer, N = L H.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from headscope.analysis.diversity import diversity, pairs_by_similarity, uniqueness
from headscope.analysis.head_statistics import HeadStatistics
from headscope.analysis.largest import find_largest_weight
from headscope.checkpoint import AttentionReading

PAIRS = 5
"""Number of pairs listed as most similar, and as least similar."""

UNIFORM = "uniform_"
"""Prefix of the columns with the values of uniform attention, which are the same in all rows."""


def head_rows(
    statistics: HeadStatistics, more_figures: Mapping[str, Tensor] | None = None
) -> list[dict[str, Any]]:
    """One row per head with all its figures, and those of `more_figures`, (L, H) each, by name."""
    layers, heads = statistics.figures["self"].shape
    unique = uniqueness(statistics.similarity).view(layers, heads)
    figures = {**statistics.figures, "uniqueness": unique, **(more_figures or {})}
    rows = []
    for index, (layer, head) in enumerate(np.ndindex(layers, heads)):
        values = {name: float(figure[layer, head]) for name, figure in figures.items()}
        rows.append({"layer": layer, "head": head, "type": statistics.types[index], **values})
    return rows


def with_uniform(
    rows: Sequence[Mapping[str, Any]], statistics: HeadStatistics
) -> list[dict[str, Any]]:
    """The rows with a column `uniform_<figure>` for each figure: the value of uniform attention."""
    uniform = {f"{UNIFORM}{name}": statistics.uniform[name] for name in statistics.figures}
    return [{**row, **uniform} for row in rows]


def column_rows(statistics: HeadStatistics, measured_on: Mapping[str, str]) -> list[dict[str, Any]]:
    """One row per figure of the table of heads: a description of the text it was `measured_on`, and
    the value of uniform attention, or None if there is none."""
    return [
        {"figure": name, "measured_on": text, "uniform": statistics.uniform.get(name)}
        for name, text in measured_on.items()
    ]


def between_heads(statistics: HeadStatistics) -> dict[str, Any]:
    """The `diversity` of the heads, and the most and least similar pairs (cosine similarity)."""
    pairs = [
        {"heads": [statistics.names[first], statistics.names[second]], "similarity": value}
        for first, second, value in pairs_by_similarity(statistics.similarity)
    ]
    return {
        "diversity": float(diversity(statistics.similarity)),
        "most_alike": pairs[:PAIRS],
        "least_alike": pairs[::-1][:PAIRS],
    }


def matrix_rows(matrix: Tensor, names: Sequence[str]) -> list[dict[str, Any]]:
    """One row per head of a matrix (N, N), with a column per head."""
    return [
        {"head": name, **dict(zip(names, row, strict=True))}
        for name, row in zip(names, matrix.tolist(), strict=True)
    ]


def largest_weight_rows(reading: AttentionReading) -> list[dict[str, Any]]:
    """One row per head: the largest weight of its map, with the query and the key."""
    largest = find_largest_weight(reading.weights)
    rows = []
    for layer, head in np.ndindex(*largest.weight.shape):
        query, key = int(largest.query[layer, head]), int(largest.key[layer, head])
        rows.append(
            {
                "layer": layer,
                "head": head,
                "weight": float(largest.weight[layer, head]),
                "query": query,
                "query_token": reading.labels[query],
                "key": key,
                "key_token": reading.labels[key],
            }
        )
    return rows


def history_rows(history: Sequence[tuple[int, HeadStatistics]]) -> list[dict[str, Any]]:
    """The table of heads at each step of `history`."""
    return [
        {"step": step, **row}
        for step, statistics in history
        for row in with_uniform(head_rows(statistics), statistics)
    ]


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
