"""Why a head looks where it looks: its scores, as sums over what queries and keys read.

Shapes: N parts of the residual stream, T tokens, D head_dim, C embed_dim.

A score is scale q . k. Once the scales of norms are fixed, q and k are linear in the residual
stream, also after a rotation by position. The residual stream is a sum: the embedding, and what
each earlier head and network adds. So a score is a sum over pairs of a part that the query reads
and a part that the key reads (Elhage 2021, "QK circuits"). Softmax ignores a number that is added
to all scores of a query, so scores are shown relative to their mean over the keys that it sees.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from headscope.analysis.activations import Activations
from headscope.analysis.circuits import is_linear
from headscope.analysis.direct_effects import fold_into, fold_norm, norm_scale
from headscope.analysis.head_outputs import Head, moved_values, output_matrices, parse_head
from headscope.analysis.rows import DataFrame, Rows, data_frame
from headscope.errors import UserError
from headscope.nn import AdditiveAttention, Position, StackedHeads

LISTED = 8
"""Number of pairs and of raised tokens that a page lists."""
TOLERANCE = 1e-4
"""Largest error of a weight, and of a score relative to the lengths of its query and key. Scores of
a model in bfloat16 may have a larger error."""
BIASES = "biases"
"""The part of queries and keys that comes from biases: those of the norm and of `qkv_bias`."""
POSITION_BIAS = "position bias"
"""The row of a table for the number that the position encoding adds to a score."""


@dataclass(frozen=True, repr=False)
class Why:
    """Where the score of a `query` and a `key` comes from, relative to the mean over the keys that
    the query sees. Or, if `query` is None, where the differences of all scores on a text come from.

    `pairs` (N, N) has a row for each of the `parts` that a query reads, and a column for each that
    a key reads, on the CPU. With the `position_bias`, they add up to the `total`: the score, or 1
    for all scores, where a pair has its covariance with the sum, divided by the variance.
    """

    head: str
    query: int | None
    key: int | None
    parts: list[str]
    pairs: Tensor
    position_bias: float

    def __repr__(self) -> str:
        edge = "the whole text" if self.query is None else f"query {self.query}, key {self.key}"
        return f"<Why {self.head}, {edge}: {len(self.parts)} parts, total {self.total:.4g}>"

    @property
    def total(self) -> float:
        return float(self.pairs.sum()) + self.position_bias

    def table(self) -> DataFrame:
        """A row for each pair, the largest number first: `query_part`, `key_part`, and `score` or,
        for all scores of a text, `share`. A position bias has a row named "position bias"."""
        return data_frame(self.rows())

    def by_query(self) -> DataFrame:
        """A row for each `query_part`, with its sum over all key parts, the largest number first.
        The last row is the position bias, and all rows add up to the total."""
        return data_frame(self.sums("query"))

    def by_key(self) -> DataFrame:
        """The same for each `key_part`, summed over all query parts."""
        return data_frame(self.sums("key"))

    def sums(self, side: Literal["query", "key"]) -> Rows:
        """The rows of `by_query` or `by_key` as plain data."""
        values = self.pairs.sum(dim=1 if side == "query" else 0).tolist()
        rows = sorted(zip(self.parts, values, strict=True), key=lambda row: -abs(row[1]))
        rows.append((POSITION_BIAS, self.position_bias))
        return [{f"{side}_part": part, self.unit: value} for part, value in rows]

    @property
    def unit(self) -> str:
        return "share" if self.query is None else "score"

    def rows(self, count: int | None = None) -> Rows:
        """The first `count` rows of `table` as plain data, by default all."""
        values, size = self.pairs.flatten(), len(self.parts)
        if self.position_bias:
            values = torch.cat([values, values.new_tensor([self.position_bias])])
        order = values.abs().argsort(descending=True, stable=True)[:count]
        rows = []
        for at, value in zip(order.tolist(), values[order].tolist(), strict=True):
            is_pair, pair = at < size**2, divmod(at, size)
            query, key = (self.parts[part] if is_pair else POSITION_BIAS for part in pair)
            rows.append({"query_part": query, "key_part": key, self.unit: value})
        return rows


@dataclass(frozen=True)
class QueriesAndKeys:
    """What a head multiplies on one text, in float64 on the CPU. `q` and `k` (N, T, D) have a row
    for each of the `parts`, which add up to the queries and keys. `visible` (T, T) is True where a
    query sees a key. The scores are scale q k^T + `bias` (T, T), that of the position encoding."""

    parts: list[str]
    q: Tensor
    k: Tensor
    scale: float
    bias: Tensor
    visible: Tensor

    @property
    def scores(self) -> Tensor:
        return self.scale * self.q.sum(dim=0) @ self.k.sum(dim=0).mT + self.bias

    def minus_mean(self, x: Tensor) -> Tensor:
        """x (T, T) minus its mean over the keys that each query sees. Zero for other keys."""
        seen = x.where(self.visible, 0.0)
        mean = seen.sum(dim=-1, keepdim=True) / self.visible.sum(dim=-1, keepdim=True).clamp(min=1)
        return (x - mean).where(self.visible, 0.0)

    def divided(self, edges: Tensor) -> tuple[Tensor, float]:
        """The sum of all scores times `edges` (T, T), as pairs (N, N) and a position bias."""
        pairs = self.q.flatten(1) @ (edges @ self.k).flatten(1).mT
        return self.scale * pairs, float((edges * self.bias).sum())

    def why(self, head: str, query: int, key: int) -> Why:
        """A score, relative to the mean over the keys that the query sees."""
        edge = torch.zeros_like(self.scores)
        edge[query, key] = 1
        return Why(head, query, key, self.parts, *self.divided(self.minus_mean(edge)))


class ReadInLayer:
    """What the heads of a layer read on one text, in float64 on the CPU: made once for all heads.

    What an earlier head writes is its outputs (T, D) times its output matrix. The product of this
    matrix and that of a query or a key is D wide, so no term of a head is C wide (Elhage 2021).
    """

    @torch.no_grad()
    def __init__(self, reading: Activations, layer: int) -> None:
        """Raises UserError if scores are no sums over parts: in additive attention, or with some
        parts of the user."""
        self.reading, self.layer, block = reading, layer, reading.model.blocks[layer]
        modules: Any = (block.attention, block.attention_norm, reading.model.position)
        self.names = ", ".join(type(module).__name__ for module in modules)
        if isinstance(block.attention, AdditiveAttention) or not is_linear(block):
            raise self.refusal()
        self.attention, self.norm, self.position = (
            deepcopy(each).cpu().double() for each in modules
        )
        self.terms = {
            name: x.cpu().double() for name, x in reading.terms(layer, heads=False).items()
        }
        self.written = [
            (outputs[0].cpu().double(), output_matrices(attention).cpu().double())
            for attention, outputs in zip(
                reading.model.attentions[:layer], reading.forward_pass.outputs, strict=False
            )
        ]  # (T, H, D), (H, C, D)
        self.scale = norm_scale(self.norm, reading.residual[layer].cpu().double())
        self.scores = reading.scores_of(layer)[0].cpu()
        self.visible = seen_keys(reading, layer)

    def refusal(self, heads: str = "") -> UserError:
        what = f"{heads or f'layer {self.layer}'}: its scores are not a sum over pairs of parts"
        return UserError(f"{what}: {self.names}")

    def parts(self, matrix: Tensor) -> dict[str, Tensor]:
        """A query or key matrix (D, C) times each term of the normalized residual stream: (T, D)
        each."""
        folded = fold_norm(self.norm, matrix)
        others = {name: self.scale * (term @ folded.mT) for name, term in self.terms.items()}
        found = {name: term for name, term in others.items() if not re.match(r"L\d", name)}
        for layer, (outputs, matrices) in enumerate(self.written):
            composed = matrices.transpose(1, 2) @ folded.mT  # (H, D, D)
            written = self.scale * torch.einsum("thd,hde->hte", outputs, composed)
            found |= {f"L{layer}H{head}": each for head, each in enumerate(written)}
            found |= {name: x for name, x in others.items() if name.startswith(f"L{layer} ")}
        return found

    def queries_and_keys(self, head: int) -> QueriesAndKeys:
        """Raises UserError if the scores of the head are not such sums, or its weights not their
        softmax: with some parts of the user."""
        attention, norm, reading = self.attention, self.norm, self.reading

        def projected(kind: int, number: int, head_norm: Any) -> tuple[list[str], Tensor]:
            matrix = attention.projections()[kind][number]  # (D, C)
            parts = self.parts(matrix)
            bias = torch.zeros(len(matrix)).double()
            if getattr(norm, "bias", None) is not None:
                bias += matrix @ norm.bias
            if attention.qkv_bias:
                bias += attention.projections("bias")[kind][number]
            parts[BIASES] = bias.expand_as(parts["embedding"])
            x = torch.stack([*parts.values()])  # (N, T, D)
            return [*parts], norm_scale(head_norm, x.sum(dim=0)) * fold_into(head_norm, x)

        owner = attention.stack[head] if isinstance(attention, StackedHeads) else attention
        names, queries = projected(0, head, owner.q_norm)
        _, keys = projected(1, head * attention.kv_heads // attention.heads, owner.k_norm)
        q, k = (x[:, 0] for x in self.position.rotate(queries[:, None], keys[:, None]))
        length = len(reading.tokens)
        bias = self.position.bias(length, length)
        bias = torch.zeros(length, length) if bias is None else bias[head % len(bias)].detach()
        used = q.flatten(1).any(dim=1) | k.flatten(1).any(dim=1)
        parts = [name for name, is_used in zip(names, used, strict=True) if is_used]
        scores, visible = self.scores[head], self.visible[head]
        found = QueriesAndKeys(parts, q[used], k[used], attention.scale, bias, visible)
        error = (found.scores - scores).abs()
        lengths = [x.sum(dim=0).norm(dim=-1) for x in (q, k)]
        largest = attention.scale * torch.outer(*lengths) + bias.abs()  # that a score can be
        rounding = max(TOLERANCE, 4 * torch.finfo(reading.model.embedding.weight.dtype).eps)
        weights = scores.where(visible, -torch.inf).softmax(dim=-1).where(visible, 0.0)
        of_model = reading.attention[self.layer, head].cpu()
        is_softmax = (of_model - weights).abs().max() < TOLERANCE
        if not is_softmax or not (error <= rounding * largest)[visible].all():
            raise self.refusal(f"L{self.layer}H{head}")
        return found


def seen_keys(reading: Activations, layer: int) -> Tensor:
    """The mask (H, T, T), True where a query sees a key: earlier, in the same document, and not
    hidden by an attention of the user. These keys get a weight if all queries and keys are zero."""
    attention, length = reading.model.attentions[layer], len(reading.tokens)
    heads = (attention.heads, attention.kv_heads, attention.kv_heads)
    zeros = (reading.residual.new_zeros(1, number, length, attention.head_dim) for number in heads)
    mask = reading.model.document_mask(reading.tokens[None])
    computed = attention.attend(*zeros, mask=mask, bias=None, dropout=0.0, explicit=True)
    assert computed.weights is not None  # the explicit path returns them
    return computed.weights[0].cpu() > 0


def edge_of(
    reading: Activations, head: Head, visible: Tensor, query: int | None, key: int | None
) -> tuple[int, int]:
    """The positions of a query, by default the last one, and of a key, by default the one with the
    largest weight. Raises UserError if there is no such position, or if the key is not visible."""
    query = reading.position(-1 if query is None else query, "query")
    strongest = int(reading.attention[(*head, query)].argmax())
    key = reading.position(strongest if key is None else key, "key")
    if not visible[query, key]:
        problem = f"key={key}: in L{head[0]}H{head[1]}, the query at {query} does not see it"
        raise UserError(f"{problem}; choose another key")
    return query, key


@torch.no_grad()
def why(
    reading: Activations,
    head: str,
    query: int | None,
    key: int | None,
    in_layer: ReadInLayer | None = None,
) -> Why:
    """See `Reading.why`. `in_layer` is what the heads of this layer read, if it is known."""
    layer, number = parse_head(head, reading.model)
    if query is None and key is None:
        found = (in_layer or ReadInLayer(reading, layer)).queries_and_keys(number)
        edges = found.minus_mean(found.scores)
        if edges.abs().max() <= 1e-6 * found.scores[found.visible].abs().max():  # rounding
            raise UserError(f"{head} has equal scores for all keys of a query: read a longer text")
        edges = edges / edges.square().sum()  # the covariance with it is a share of the variance
        return Why(head, None, None, found.parts, *found.divided(edges))
    query, key = edge_of(reading, (layer, number), seen_keys(reading, layer)[number], query, key)
    in_layer = in_layer or ReadInLayer(reading, layer)
    return in_layer.queries_and_keys(number).why(head, query, key)


def why_of_all(reading: Activations) -> Iterator[Why]:
    """Which pairs make the scores of each head differ (see `Reading.why`), of those heads whose
    scores are such sums."""
    for layer, attention in enumerate(reading.model.attentions):
        with suppress(UserError):
            in_layer = ReadInLayer(reading, layer)
            for head in range(attention.heads):
                with suppress(UserError):
                    yield why(reading, f"L{layer}H{head}", None, None, in_layer)


@torch.no_grad()
def explanation(reading: Activations, head: str, query: int, key: int | None) -> dict[str, Any]:
    """How a head computes the weight of `query` on `key`, and why, for a page:

    - `scores` and `weights` (T,) of all keys, None where the query does not see them.
    - `raised`: the tokens whose logits the weighted value raises most directly.
    - `q` and `k` (D,), their `scale`, and the `position_bias` of this score.
    - `elsewhere`: the scores of this query and key if the key stood at the query, one token back,
      and so on, and `others`: the mean score of all keys if each of them stood where this one is.
      Only for a position encoding that rotates or has a bias.
    - `pairs`: LISTED pairs of the sum, the largest first, its `total`, and `by_query` and `by_key`:
      [part, number] of each part, the largest first, and of the position bias.

    If the scores are not such a sum, `problem` says why, and what follows `raised` is missing.
    `raised` is missing if the head is switched off or held, so that no value is moved, and in an
    attention of the user without matrices."""
    layer, number = parse_head(head, reading.model)
    visible = seen_keys(reading, layer)[number]
    query, key = edge_of(reading, (layer, number), visible, query, key)
    block, seen = reading.model.blocks[layer], visible[query].tolist()
    scores, weights = reading.scores_of(layer)[0], reading.attention[layer]
    shown: dict[str, Any] = {"step": reading.step or 0, "head": head, "query": query, "key": key}
    for name, rows in (("scores", scores), ("weights", weights)):
        values = zip(rows[number, query].tolist(), seen, strict=True)
        shown[name] = [value if is_seen else None for value, is_seen in values]
    if is_linear(block):
        attention, residual = block.attention, reading.residual[[layer]]
        moved = moved_values(block, residual, weights[None], reading.forward_pass.outputs[layer])
        written = output_matrices(attention)[number] @ moved[0, number, key]
        if written.isfinite().all():
            pushes = reading.pushes(weights[number, query, key] * written, query)
            shown["raised"] = reading.most_pushed(pushes, LISTED)
    try:
        found = ReadInLayer(reading, layer).queries_and_keys(number)
    except UserError as error:
        return shown | {"problem": str(error)}
    sums = found.why(head, query, key)
    position, shared = type(reading.model.position), number * attention.kv_heads // attention.heads
    if position.rotate is not Position.rotate or position.bias is not Position.bias:
        x = block.attention_norm(residual)
        q, k, _ = attention.project(x, x, x)
        units = torch.eye(k.size(-1)).to(k)[None, :, None].expand(-1, -1, len(seen), -1)
        turned, places = reading.model.position.rotate(q[:, [number]], units)  # (_, _, T, D)
        everywhere = attention.scale * k[0, shared] @ (places[0] @ turned[0, 0, query])
        everywhere = everywhere.cpu().double() + found.bias[query]  # (T keys, T places)
        shown["elsewhere"] = everywhere[key, : query + 1].flip(0).tolist()
        shown["others"] = float(everywhere[found.visible[query], key].mean())
    return shown | {
        "q": found.q.sum(dim=0)[query].tolist(),
        "k": found.k.sum(dim=0)[key].tolist(),
        "scale": found.scale,
        "position_bias": float(found.bias[query, key]),
        "pairs": [list(row.values()) for row in sums.rows(LISTED)],
        "total": sums.total,
        "by_query": [list(row.values()) for row in sums.sums("query")],
        "by_key": [list(row.values()) for row in sums.sums("key")],
    }
