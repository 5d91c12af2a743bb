"""Makes the tables of a report, as plain data and as CSV.

Shapes: L layers, H heads per layer, N = L H, T tokens.
"""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import chain, product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headscope.analysis.circuits import KINDS, WEIGHT_METRICS, compositions, random_composition
from headscope.analysis.diversity import diversity, jensen_shannon, pairs_by_similarity, uniqueness
from headscope.analysis.head_statistics import HeadStatistics, visible_in
from headscope.analysis.in_context import in_context_score
from headscope.analysis.metrics import counted_queries, visible_keys
from headscope.analysis.patching import PatchingResult, PatchTexts
from headscope.analysis.reading import Reading
from headscope.analysis.repeats import REPEAT_METRICS
from headscope.analysis.rows import Rows, per_head
from headscope.analysis.why import Why
from headscope.errors import UserError
from headscope.nn import GPT
from headscope.show.report.inputs import VALIDATION, ReportInput
from headscope.show.viewer.snapshot import Predictions
from headscope.trained.ablations import AblationResult

PAIRS = 5  # in the lists of the most and of the least similar pairs of heads
PAGE_TABLES = ("jensen_shannon.csv", "lens.csv", "pushes.csv", "reads.csv")
READ = 5  # pairs of parts for each head
History = Sequence[tuple[int, HeadStatistics, Mapping[str, Tensor]]]
"""For each training step, its statistics, and the metrics of an `AblationResult`, if any."""
LabelOf = Callable[[int], str]  # gives the label of a token of the vocabulary


def tables_of(report: ReportInput, statistics: HeadStatistics, shown: int) -> dict[str, str]:
    """The tables of pairs of heads, and of the first `shown` tokens of the text, as CSV."""
    loaded, reading = report.loaded, report.reading
    visible = visible_in(loaded.model, reading.tokens[None])
    visible = None if visible is None else visible[0]  # (1, T, T)
    cut = None if visible is None else visible[:, :shown, :shown]
    maps = reading.attention.flatten(0, 1)[:, :shown, :shown]
    predicted = reading.predictions(reading.targets(shown))
    described = predicted, reading.labels[:shown], loaded.tokenizer.label
    rows = {
        "similarity.csv": matrix_rows(statistics.similarity, statistics.heads),
        "jensen_shannon.csv": matrix_rows(jensen_shannon(maps, cut), statistics.heads),
        "largest_weights.csv": largest_weight_rows(reading, visible),
        "lens.csv": lens_rows(*described),
    }
    if shown > 1:
        rows["pushes.csv"] = push_rows(*described)
    if len(loaded.model.blocks) > 1 and "composition" in statistics.metrics:
        rows["composition.csv"] = composition_rows(loaded.model)
    return {name: csv_text(of_table) for name, of_table in rows.items()}


def measured_on(
    source: str, metrics: Mapping[str, Any], ablated: Mapping[str, Any]
) -> dict[str, str]:
    """For each metric in the table of heads, the text that it was measured on."""
    texts = dict.fromkeys([*metrics, "uniqueness"], source) | dict.fromkeys(ablated, VALIDATION)
    repeated = [*REPEAT_METRICS, "other_induction"]
    special = dict.fromkeys(repeated, "repeated random texts")
    special |= dict.fromkeys(WEIGHT_METRICS, "the weights of the model")
    return {name: special.get(name, text) for name, text in texts.items()}


def summary(
    report: ReportInput,
    statistics: HeadStatistics,
    ablation: AblationResult | None,
    patching: tuple[PatchTexts, PatchingResult] | None,
) -> dict[str, Any]:
    """The content of heads.json without the table of heads."""
    pairs = [
        {"heads": [statistics.heads[first], statistics.heads[second]], "similarity": value}
        for first, second, value in pairs_by_similarity(statistics.similarity)
    ]
    texts = measured_on(report.source, statistics.metrics, ablation.metrics if ablation else {})
    page = "the text of attention.html"
    content = {
        "checkpoint": str(report.loaded.path),
        "step": report.loaded.step,
        "windows": len(report.windows),
        "tokens": report.windows.size(1),
        "in_context_score": in_context_score(report.loaded.model, report.windows, report.answers),
        "text": report.loaded.tokenizer.decode(report.reading.tokens.tolist()),
        "measured_on": {
            **dict.fromkeys(["similarity.csv", "examples.csv"], report.source),
            **dict.fromkeys(PAGE_TABLES, page),
            "deciders.csv": f"the last token of {page}",
            "attention.html": "the beginning of `text`",
        },
        "diversity": float(diversity(statistics.similarity)),
        "most_alike": pairs[:PAIRS],
        "least_alike": pairs[::-1][:PAIRS],
        "metrics": [
            {"metric": name, "measured_on": text, "uniform": statistics.uniform.get(name)}
            for name, text in texts.items()
        ],
    }
    if ablation:
        described = {name: getattr(ablation, name) for name in ("replace_by", "windows", "loss")}
        described["correlation_with_loss_change"] = ablation.correlations
        content["ablation"] = described
    if patching:
        asked, scores = patching
        content["patching"] = {
            "clean": asked.clean_labels,
            "corrupted": asked.corrupted_labels,
            "position": asked.position,
            "metric": asked.metric_name,
            "metric_clean": scores.clean,
            "metric_corrupted": scores.corrupted,
            "heads": patching_rows(scores),
        }
    return content


def head_rows(statistics: HeadStatistics, more: Mapping[str, Tensor] | None = None) -> Rows:
    """One row per head with its metrics, also those in `more`, each a tensor (L, H)."""
    unique = uniqueness(statistics.similarity).view_as(statistics.metrics["self"])
    metrics = statistics.metrics | {"uniqueness": unique} | dict(more or {})
    return per_head(metrics, [head_type.name for head_type in statistics.types])


def with_uniform(rows: Rows, statistics: HeadStatistics) -> Rows:
    """The rows with a column `uniform_<name>` per metric: its value for uniform attention."""
    uniform = {f"uniform_{name}": value for name, value in statistics.uniform.items()}
    return [{**row, **uniform} for row in rows]


def history_rows(history: History) -> Rows:
    """The rows of the table of heads for each training step in `history`."""
    return [
        {"step": step, **row}
        for step, statistics, ablated in history
        for row in with_uniform(head_rows(statistics, ablated), statistics)
    ]


def matrix_rows(matrix: Tensor, names: Sequence[str]) -> Rows:
    """The rows of a matrix (N, N), with one row per head and one column per head."""
    pairs = zip(names, matrix.tolist(), strict=True)
    return [{"head": name, **dict(zip(names, row, strict=True))} for name, row in pairs]


def largest_weight_rows(reading: Reading, visible: Tensor | None = None) -> Rows:
    """One row per head: the largest weight in its attention map, with the query and the key of this
    weight, the first in row-major order if several are equal. A query that sees a single key counts
    only if no query sees more, because its weight is always 1."""
    visible = visible_keys(reading.attention, visible)
    candidates = visible & counted_queries(visible)[..., None]
    flat = torch.where(candidates, reading.attention, -1.0).flatten(-2)  # (L, H, T T)
    rows = per_head({"weight": flat.amax(dim=-1)})
    for row, place in zip(rows, flat.argmax(dim=-1).flatten().tolist(), strict=True):
        query, key = divmod(place, len(reading.labels))
        row |= {"query": query, "query_token": reading.labels[query]}
        row |= {"key": key, "key_token": reading.labels[key]}
    return rows


def patching_rows(result: PatchingResult) -> Rows:
    """One row per head: the scores of activation patching, and the metric that they come from."""
    scores = {"denoising": result.denoising, "noising": result.noising}
    metrics = {"denoised_metric": result.denoised, "noised_metric": result.noised}
    return per_head(scores | metrics)


def lens_rows(predicted: Predictions, labels: Sequence[str], label_of: LabelOf) -> Rows:
    """One row per token and layer: the most likely next token by the residual stream before this
    layer (last row: after the last layer), the true next token, and both probabilities."""
    rows: Rows = []
    for token, layer in product(range(len(labels)), range(len(predicted.tokens))):
        known = token + 1 < len(labels)
        target = predicted.target_probabilities[layer, token]
        row = {
            "position": token,
            "token": labels[token],
            "layer": layer,
            "most_likely": label_of(predicted.tokens[layer, token, 0]),
            "probability": float(predicted.probabilities[layer, token, 0]),
            "next_token": labels[token + 1] if known else "",
            "next_probability": float(target) if known else "",
        }
        rows.append(row)
    return rows


def push_rows(predicted: Predictions, labels: Sequence[str], label_of: LabelOf) -> Rows:
    """One row per token and head: what the head adds to the logit of the next token, and the token
    that it raises most."""
    rows: Rows = []
    layers, heads, tokens = predicted.target_pushes.shape
    for token, layer, head in product(range(tokens - 1), range(layers), range(heads)):
        row = {"position": token, "token": labels[token], "next_token": labels[token + 1]}
        push = predicted.target_pushes[layer, head, token]
        row |= {"layer": layer, "head": head, "push": float(push)}
        if layer in predicted.raised:
            raised, pushes = predicted.raised[layer]
            row["raised_most"] = label_of(raised[head, token, 0])
            row["its_push"] = float(pushes[head, token, 0])
        rows.append(row)
    return rows


def composition_rows(model: GPT) -> Rows:
    """One row per pair of a head and an earlier head: Q-, K- and V-composition, and their value for
    random matrices."""
    composed, random = compositions(model), random_composition(model)
    layers, heads = composed["q"].shape[:2]
    return [
        {
            "head": f"L{late}H{head}",
            "earlier": f"L{early}H{other}",
            **{kind: float(composed[kind][late, head, early, other]) for kind in KINDS},
            "random": random,
        }
        for late, head, early, other in product(*map(range, (layers, heads) * 2))
        if early < late
    ]


def reads_of(reading: Reading) -> dict[str, Why]:
    """For each head, which pairs of parts make its scores differ on this text (see `Reading.why`).
    Heads are left out if their scores are not a sum over pairs, or do not differ."""
    layers, heads = reading.attention.shape[:2]
    reads = {}
    for name in (f"L{layer}H{head}" for layer, head in np.ndindex(layers, heads)):
        with suppress(UserError):
            reads[name] = reading.why(name)
    return reads


def read_rows(reads: Mapping[str, Why]) -> Rows:
    """The READ pairs of each head with the largest shares."""
    return [{"head": head, **row} for head, why in reads.items() for row in why.rows()[:READ]]


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    columns = dict.fromkeys(chain(*rows))  # a metric of the user may be known at some steps only
    writer = csv.DictWriter(text, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
