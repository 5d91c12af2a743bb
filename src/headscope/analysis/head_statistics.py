"""Measures all heads of a model on some texts.

Shapes: L layers, H heads per layer, N windows, T tokens.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from headscope.analysis.circuits import weight_metrics
from headscope.analysis.direct_effects import direct_effects
from headscope.analysis.diversity import cosine_similarity, diversity
from headscope.analysis.head_outputs import Track
from headscope.analysis.metrics import (
    OF_QUERIES,
    best_offset,
    beyond_first,
    counted_queries,
    first_mass,
    offset_sums,
    single_key_mass,
    uniform,
)
from headscope.analysis.own_metrics import HeadMetric, description, own_metrics, own_sums
from headscope.analysis.record import HeadRecord, of_model
from headscope.analysis.repeats import TEXTS, RepeatProbe, can_measure_repeats
from headscope.analysis.tokens import TokenKinds, mass_on, targets_in
from headscope.nn import GPT
from headscope.nn.capture import capture

MAX_WEIGHTS = 2**25
"""Maximum number of attention weights in a batch of windows, to limit its memory."""
OFFSETS = "offset_sums"
MIN_QUERIES = 8
"""A metric that depends on the tokens, such as `punctuation`, is NaN for a head if fewer of its
queries see such a token. With fewer, a head would get the name by chance."""


def measure_heads(
    model: GPT,
    windows: Tensor,
    *,
    source: str = "these texts",
    kinds: TokenKinds | None = None,
    repeats: RepeatProbe | None = None,
    own: Mapping[str, HeadMetric] | None = None,
    track: Track = iter,
    **known: Any,
) -> HeadRecord:
    """Measure all metrics of all heads, which give their names. Most metrics are averaged over the
    queries of `windows` (N, T) of tokens that do not rest (see `headscope.analysis.metrics`).

    The induction metrics are averaged over the repeated random texts of `repeats` instead, by
    default over TEXTS texts. They are omitted if `can_measure_repeats` is false. The metric
    `punctuation` is measured only if `kinds` is given, and `frequent` only if `kinds.frequent` is
    given. `own` are metrics of the user, which give no names. `known` are fields of the record that
    are not measured: `digest`, `step` and `thresholds`. Raises UserError if one of `own` has a
    wrong name or result (see `headscope.analysis.own_metrics`).
    """
    own = own_metrics(own)
    length = windows.size(1)
    ones = torch.ones(length, length, device=model.device)
    sums: dict[str, tuple[Any, Any]] = {}  # of the values of a metric, and their number
    uniform_sums: dict[str, tuple[Any, Any]] = {}
    similarity, effects = torch.zeros(()), torch.zeros(())
    for batch in track(in_batches(model, windows)):
        captured = capture(model, batch)
        weights = captured.attention  # (L, N, H, T, T)
        pushes = direct_effects(model, batch, captured.residual[-1], captured.outputs)
        effects = effects + len(batch) * pushes.cpu()
        visible = visible_in(model, batch)
        targets = targets_in(batch, kinds)
        even = uniform(ones, visible).expand(len(weights), len(batch), 1, -1, -1)
        left, others, active = beyond_first(weights, visible)
        for totals, maps, rest in (
            (sums, weights, left),
            (uniform_sums, even, uniform(ones, others)),
        ):
            first, queries = first_mass(maps, visible)
            queries = queries.expand_as(first)
            found = {"first": ((queries * first).sum(dim=(1, -1)), queries.sum(dim=(1, -1)))}
            found |= sums_of(rest, others, active, targets)
            for name, total in own_sums(own, maps.expand_as(weights), batch).items():
                found[name] = total, torch.tensor(len(batch))
            for name, (total, count) in found.items():
                before = totals.get(name, (0, 0))
                totals[name] = before[0] + total.cpu(), before[1] + count.cpu()
        similarity = similarity + similarity_sum(weights, visible)
    repeats = repeats or repeat_probe(model, kinds, TEXTS)
    metrics, even_metrics = means(sums), means(uniform_sums)
    del even_metrics["queries"]
    for name in targets:
        few = sums[name][1] < MIN_QUERIES
        metrics[name] = metrics[name].masked_fill(few, math.nan)
    if repeats:
        seen = visible_in(model, repeats.texts.tokens.to(model.device))
        even_metrics |= repeats.uniform(None if seen is None else seen.cpu())
        metrics |= {name: metric.cpu() for name, metric in repeats.metrics(model).items()}
    metrics["direct_effect"] = effects / len(windows)
    metrics |= {name: metric.cpu() for name, metric in weight_metrics(model).items()}
    metrics |= {name: metrics.pop(name) for name in own}  # the last ones in tables
    return HeadRecord(
        metrics=metrics,
        uniform={
            name: value.expand(weights.shape[0], weights.shape[2]).flatten().tolist()
            for name, value in even_metrics.items()
        },
        diversity=float(diversity((similarity / len(windows)).clamp(0, 1))),
        windows=len(windows),
        tokens=length,
        source=source,
        descriptions={name: description(metric) for name, metric in own.items()},
        **of_model(model),
        **known,
    )


def sums_of(
    weights: Tensor, visible: Tensor, active: Tensor, targets: Mapping[str, Tensor]
) -> dict[str, tuple[Tensor, Tensor]]:
    """For each metric of attention beyond the first token, the sum of its values, (L, H), and their
    number. The mean is the sum divided by the number. Only the queries in the mask `active`
    (L, N, H, T) count: those that do not rest. `weights` are those of `beyond_first`, or uniform
    ones."""
    sums = {}
    for name, metric in OF_QUERIES.items():
        values, queries = metric(weights, visible)
        queries = queries & active
        sums[name] = torch.where(queries, values, 0.0).sum(dim=(1, 3)), queries.sum(dim=(1, 3))
    judged = (counted_queries(visible) & active).sum(dim=-1)  # (L, N, H)
    values = judged * single_key_mass(weights, visible, active)
    sums["single_key"] = values.sum(dim=1), judged.sum(dim=1)
    sums["queries"] = judged.sum(dim=1), torch.tensor(1)
    sums[OFFSETS] = offset_sums(weights, visible, active).sum(dim=1), torch.tensor(1)
    for name, target in targets.items():
        sums[name] = mass_on(weights, target, visible, active)
    return sums


def means(sums: Mapping[str, tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """The metrics (L, H) from their sums."""
    metrics = {name: total / count.clamp(min=1) for name, (total, count) in sums.items()}
    return metrics | best_offset(metrics.pop(OFFSETS), metrics["queries"])


def head_similarity(model: GPT, windows: Tensor) -> Tensor:
    """The cosine similarity of each pair of heads on windows (N, T) of tokens, (L H, L H)."""
    similarity = torch.zeros(())
    for batch in in_batches(model, windows):
        weights, visible = capture(model, batch).attention, visible_in(model, batch)
        similarity = similarity + similarity_sum(weights, visible)
    return (similarity / len(windows)).clamp(0, 1)


def similarity_sum(weights: Tensor, visible: Tensor | None) -> Tensor:
    """The similarity of each pair of heads by weights (L, N, H, T, T), summed over the texts."""
    if visible is not None:
        visible = visible.expand_as(weights).transpose(0, 1).flatten(1, 2)
    maps = weights.transpose(0, 1).flatten(1, 2)  # (N, L H, T, T)
    return cosine_similarity(maps, visible).sum(dim=0).cpu()


def in_batches(model: GPT, windows: Tensor) -> Sequence[Tensor]:
    """The windows (N, T) in batches, whose attention weights fit in memory."""
    heads = sum(layer.heads for layer in model.attentions)
    at_once = max(1, MAX_WEIGHTS // (heads * windows.size(1) ** 2))
    return windows.to(model.device).split(at_once)


def visible_in(model: GPT, tokens: Tensor) -> Tensor | None:
    """The mask (L, N, 1, T, T) of the keys that each query sees in `tokens` (N, T), if the model
    keeps attention within documents or windows. Otherwise None: it sees all earlier tokens."""
    documents, length = model.document_mask(tokens), tokens.size(1)
    if documents is None and not any(layer.layer_window for layer in model.attentions):
        return None
    masks = [layer.get_buffer("mask")[:length, :length] for layer in model.attentions]
    seen = torch.stack(masks)[:, None, None]
    seen = seen if documents is None else seen & documents
    return seen.expand(-1, len(tokens), -1, -1, -1)


def repeat_probe(model: GPT, kinds: TokenKinds | None, texts: int) -> RepeatProbe | None:
    """`texts` repeated random texts without special tokens, or None (see `can_measure_repeats`)."""
    pieces = [] if kinds is None else kinds.pieces
    excluded = [token for token, piece in enumerate(pieces) if not piece]
    measurable = can_measure_repeats(model, excluded)
    return RepeatProbe(model, excluded=excluded, texts=texts) if measurable else None
