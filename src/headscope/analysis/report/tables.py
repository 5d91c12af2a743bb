"""Makes the tables of a report, as plain data and as CSV.

Shapes: L layers, H heads per layer, N = L H, T tokens.
"""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headscope.analysis.circuits import KINDS, compositions, random_composition
from headscope.analysis.diversity import diversity, pairs_by_similarity, uniqueness
from headscope.analysis.head_statistics import HeadStatistics
from headscope.analysis.metrics import counted_queries, visible_keys
from headscope.analysis.patching import PatchingResult
from headscope.analysis.reading import Reading
from headscope.nn import GPT
from headscope.viewer.snapshot import Predictions

LabelOf = Callable[[int], str]
"""Gives the label of a token of the vocabulary."""
PAIRS = 5
"""Number of pairs in the list of the most similar pairs, and in the list of the least similar
pairs."""

UNIFORM = "uniform_"
"""Prefix of the columns that contain the values for uniform attention. These values are the same in
all rows."""


def head_rows(
    statistics: HeadStatistics, more_metrics: Mapping[str, Tensor] | None = None
) -> list[dict[str, Any]]:
    """One row per head with all its metrics. `more_metrics` contains additional metrics by name,
    each a tensor (L, H)."""
    layers, heads = statistics.metrics["self"].shape
    unique = uniqueness(statistics.similarity).view(layers, heads)
    metrics = {**statistics.metrics, "uniqueness": unique, **(more_metrics or {})}
    rows = []
    for index, (layer, head) in enumerate(np.ndindex(layers, heads)):
        values = {name: float(metric[layer, head]) for name, metric in metrics.items()}
        rows.append({"layer": layer, "head": head, "type": statistics.types[index].name, **values})
    return rows


def with_uniform(
    rows: Sequence[Mapping[str, Any]], statistics: HeadStatistics
) -> list[dict[str, Any]]:
    """The rows with an additional column `uniform_<name>` for each metric of attention weights: its
    value for uniform attention."""
    uniform = {f"{UNIFORM}{name}": value for name, value in statistics.uniform.items()}
    return [{**row, **uniform} for row in rows]


def column_rows(statistics: HeadStatistics, measured_on: Mapping[str, str]) -> list[dict[str, Any]]:
    """One row per metric in the table of heads. `measured_on` describes the text that each metric
    was measured on. A row contains this description and the value of the metric for uniform
    attention, or None if there is no such value."""
    return [
        {"metric": name, "measured_on": text, "uniform": statistics.uniform.get(name)}
        for name, text in measured_on.items()
    ]


def between_heads(statistics: HeadStatistics) -> dict[str, Any]:
    """The `diversity` of the heads, the most similar pairs of heads, and the least similar pairs.
    The similarity is the cosine similarity."""
    pairs = [
        {"heads": [statistics.heads[first], statistics.heads[second]], "similarity": value}
        for first, second, value in pairs_by_similarity(statistics.similarity)
    ]
    return {
        "diversity": float(diversity(statistics.similarity)),
        "most_alike": pairs[:PAIRS],
        "least_alike": pairs[::-1][:PAIRS],
    }


def matrix_rows(matrix: Tensor, names: Sequence[str]) -> list[dict[str, Any]]:
    """The rows of a matrix (N, N), with one row per head and one column per head."""
    return [
        {"head": name, **dict(zip(names, row, strict=True))}
        for name, row in zip(names, matrix.tolist(), strict=True)
    ]


def largest_weight_rows(reading: Reading, visible: Tensor | None = None) -> list[dict[str, Any]]:
    """One row per head: the largest weight in its attention map, with the query and the key of this
    weight, the first in row-major order if several are equal. A query that sees a single key counts
    only if no query sees more, because its weight is always 1."""
    visible = visible_keys(reading.attention, visible)
    candidates = visible & counted_queries(visible)[..., None]
    flat = torch.where(candidates, reading.attention, -1.0).flatten(-2)  # (L, H, T T)
    largest = flat.argmax(dim=-1)
    rows = []
    for layer, head in np.ndindex(*largest.shape):
        index = int(largest[layer, head])
        query, key = divmod(index, reading.attention.size(-1))
        rows.append(
            {
                "layer": layer,
                "head": head,
                "weight": float(flat[layer, head, index]),
                "query": query,
                "query_token": reading.labels[query],
                "key": key,
                "key_token": reading.labels[key],
            }
        )
    return rows


def patching_rows(result: PatchingResult) -> list[dict[str, Any]]:
    """One row per head: the scores of activation patching, and the metric that they come from."""
    metrics = {
        "denoising": result.denoising,
        "noising": result.noising,
        "denoised_metric": result.denoised,
        "noised_metric": result.noised,
    }
    return [
        {
            "layer": layer,
            "head": head,
            **{key: float(each[layer, head]) for key, each in metrics.items()},
        }
        for layer, head in np.ndindex(*result.denoised.shape)
    ]


def lens_rows(found: Predictions, labels: Sequence[str], label_of: LabelOf) -> list[dict[str, Any]]:
    """One row per token and layer: the most likely next token by the residual stream before this
    layer or, in the last row of a token, after the last layer. Also the token that follows in the
    text, and both probabilities."""
    rows = []
    for token, layer in product(range(len(labels)), range(len(found.tokens))):
        known = token + 1 < len(labels)
        row = {
            "position": token,
            "token": labels[token],
            "layer": layer,
            "most_likely": label_of(found.tokens[layer, token, 0]),
            "probability": float(found.probabilities[layer, token, 0]),
            "next_token": labels[token + 1] if known else "",
            "next_probability": float(found.target_probabilities[layer, token]) if known else "",
        }
        rows.append(row)
    return rows


def push_rows(found: Predictions, labels: Sequence[str], label_of: LabelOf) -> list[dict[str, Any]]:
    """One row per token and head: what the head adds to the logit of the next token, and the token
    that it raises most."""
    rows = []
    layers, heads, tokens = found.target_pushes.shape
    for token, layer, head in product(range(tokens - 1), range(layers), range(heads)):
        row = {"position": token, "token": labels[token], "next_token": labels[token + 1]}
        push = found.target_pushes[layer, head, token]
        row |= {"layer": layer, "head": head, "push": float(push)}
        if layer in found.raised:
            raised, pushes = found.raised[layer]
            row["raised_most"] = label_of(raised[head, token, 0])
            row["its_push"] = float(pushes[head, token, 0])
        rows.append(row)
    return rows


def composition_rows(model: GPT) -> list[dict[str, Any]]:
    """One row per pair of a head and an earlier head: Q-, K- and V-composition, and their value for
    random matrices."""
    found, random = compositions(model), random_composition(model)
    layers, heads = found["q"].shape[:2]
    return [
        {
            "head": f"L{late}H{head}",
            "earlier": f"L{early}H{other}",
            **{kind: float(found[kind][late, head, early, other]) for kind in KINDS},
            "random": random,
        }
        for late, head, early, other in product(*map(range, (layers, heads) * 2))
        if early < late
    ]


def history_rows(history: Sequence[tuple[int, HeadStatistics]]) -> list[dict[str, Any]]:
    """The rows of the table of heads for each training step in `history`."""
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
