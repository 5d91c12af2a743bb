"""What each head does on many texts: for each head, short texts in which a query looks at a key.

Shapes: B batch, N windows, T tokens (both queries and keys), H heads, D head_dim, C embed_dim.

The examples of a head are chosen among the strongest edges of many queries: of each query the edge
to the key with the largest weight, and the edge along which most is moved.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headscope.analysis.head_outputs import Track, output_matrices
from headscope.analysis.head_statistics import MAX_WEIGHTS_PER_HEAD, visible_in
from headscope.data.labels import visible
from headscope.data.tokenizer import Tokenizer
from headscope.nn import GPT
from headscope.nn.block import Block
from headscope.nn.capture import capture
from headscope.nn.dot_product import one_per_query_head
from headscope.show.viewer.snapshot import json_numbers, shortened

STRONGEST = 3
"""The number of examples with the largest weights, and of those along which most is moved."""
DECILES = 10
MAX_UNCOUNTED = 16
"""A query counts if it sees more keys than this."""
BEFORE, AFTER, BETWEEN = 32, 12, 24
"""The largest numbers of characters before and after a marked token, and in a gap that is shown."""
GAP = " … "


@dataclass(frozen=True, repr=False)
class Example:
    """An edge of a head: a query that looks at a key, in a window of the validation split.

    - `head`: such as L1H0. `kind`: why it was chosen, `weight`, `moved` or `decile` (see
      `find_examples`). `place`: its number in this kind, from 1.
    - `weight`: the attention weight. `moved`: the weight times the norm of what the head would add
      to the residual stream for a weight of 1, its value after the output projection. None if the
      attention computes its outputs in another way.
    - `window`: the number of the window; `query` and `key`: places in it. All count from 0.
    - `labels`: of the tokens around both. `marked` are the indices of the query and the key in this
      list. The label GAP stands for tokens that are left out.
    """

    head: str
    kind: str
    place: int
    weight: float
    moved: float | None
    window: int
    query: int
    key: int
    labels: list[str]
    marked: tuple[int, int]

    @property
    def text(self) -> str:
        """The labels as one text, with the query in 【 】 and the key in « »."""
        shown = [*self.labels]
        for at, left, right in zip(self.marked, "【«", "】»", strict=True):
            shown[at] = f"{left}{shown[at]}{right}"
        return "".join(shown)

    def row(self) -> dict[str, Any]:
        """A row of a table."""
        names = ("head", "kind", "place", "weight", "moved", "window", "query", "key")
        query, key = (self.labels[at] for at in self.marked)
        row = {name: getattr(self, name) for name in names}
        return row | {"query_token": query, "key_token": key, "text": self.text}

    def __repr__(self) -> str:
        moved = "" if self.moved is None else f", moved {self.moved:.3g}"
        return (
            f"<{self.head} {self.kind} {self.place}: weight {self.weight:.3f}{moved}: {self.text}>"
        )


@torch.no_grad()
def find_examples(
    model: GPT, windows: Tensor, tokenizer: Tokenizer, track: Track = iter
) -> list[Example]:
    """Examples of what each head does in windows (N, T) of tokens, head by head:

    - `weight`: the STRONGEST edges with the largest weights, the largest first.
    - `moved`: the STRONGEST edges along which most is moved.
    - `decile`: all queries are sorted by their largest weight, and cut into ten equal parts. The
      middle one of each part, that with the largest weights first, shows what the head does
      ordinarily.

    The strongest edges come from different windows if there are enough. A query that sees few keys
    has large weights for no other reason: a query counts only if it sees more keys than a quarter
    of the largest number that any query sees, or more than MAX_UNCOUNTED.
    """
    counted = counted_places(model, windows)
    batch_size = max(1, MAX_WEIGHTS_PER_HEAD // windows.size(1) ** 2)
    batches = track(windows.to(model.device).split(batch_size))
    edges = torch.cat([strongest_edges(model, batch) for batch in batches], dim=4)
    labels: dict[int, list[str]] = {}
    found = []
    for layer, head in np.ndindex(*edges.shape[:2]):
        for kind, place, way, at in choose(edges[layer, head], counted):
            window, query = divmod(at, windows.size(1))
            key, weight, moved = edges[layer, head, way, :, window, query].tolist()
            if window not in labels:
                every = tokenizer.labels(windows[window].tolist())
                labels[window] = [shortened(visible(label)) for label in every]
            shown, marked = cut_out(labels[window], query, int(key))
            example = Example(
                head=f"L{layer}H{head}",
                kind=kind,
                place=place,
                weight=weight,
                moved=None if math.isnan(moved) else moved,
                window=window,
                query=query,
                key=int(key),
                labels=shown,
                marked=marked,
            )
            found.append(example)
    return found


def shown_examples(
    found: Sequence[Example], windows: Tensor, source: str
) -> dict[str, dict[str, Any]]:
    """What pages show of each head: its `examples`, each with `kind`, `weight`, `moved`, `labels`
    and `marked`; the number of the `windows` (N, T), that of their `tokens` (T), and their
    `source`."""
    count, tokens = windows.shape
    shown: dict[str, dict[str, Any]] = {}
    for one in found:
        [weight, moved] = json_numbers([one.weight, math.nan if one.moved is None else one.moved])
        example: dict[str, Any] = {"kind": one.kind, "weight": weight, "moved": moved}
        example |= {"labels": one.labels, "marked": [*one.marked]}
        about = {"source": source, "windows": count, "tokens": tokens, "examples": []}
        shown.setdefault(one.head, about)["examples"].append(example)
    return shown


def counted_places(model: GPT, windows: Tensor) -> Tensor:
    """The mask (N, T) of the queries that count (see `find_examples`). With windows of one token,
    all count."""
    mask = visible_in(model, windows.to(model.device))
    seen = torch.arange(1, windows.size(1) + 1).expand(windows.shape)
    if mask is not None:
        seen = mask[:, 0].sum(dim=-1).cpu()
    most = int(seen.max())
    return seen > min(MAX_UNCOUNTED, math.ceil(most / 4), most - 1)


def strongest_edges(model: GPT, batch: Tensor) -> Tensor:
    """For each query in a batch of windows (B, T), the edge with the largest weight, and that along
    which most is moved: the key, the weight, and what is moved, (L, H, 2, 3, B, T)."""
    captured, layers = capture(model, batch), []
    for block, x, weights, outputs in zip(
        model.blocks, captured.residual, captured.weights, captured.outputs, strict=False
    ):
        moved = weights * value_norms(block, x, weights, outputs)[:, :, None]
        ways = []
        for values in (weights, moved):
            keys = values.argmax(dim=-1, keepdim=True)
            edges = [keys, weights.gather(-1, keys), moved.gather(-1, keys)]  # (B, H, T, 1) each
            ways.append(torch.stack([edge[..., 0].transpose(0, 1) for edge in edges], dim=1))
        layers.append(torch.stack(ways, dim=1))
    return torch.stack(layers).cpu()


def value_norms(block: Block, x: Tensor, weights: Tensor, outputs: Tensor) -> Tensor:
    """The norm of the value of each key after the output projection, (B, H, T), from the input of
    the block x (B, T, C). NaN if the outputs of the heads (B, T, H, D) are not sums of these values
    with the `weights` (B, H, T, T): an attention of the user may compute them in any way."""
    attention, x = block.attention, block.attention_norm(x)
    values = one_per_query_head(attention.project(x, x, x)[2], attention.heads)  # (B, H, T, D)
    difference = weights @ values - outputs.transpose(1, 2)
    if difference.norm() > 0.01 * outputs.norm():
        return torch.full_like(weights[..., 0], math.nan)
    pairs = zip(values.unbind(1), output_matrices(attention), strict=True)
    return torch.stack([(value @ matrix.T).norm(dim=-1) for value, matrix in pairs], dim=1)


def choose(edges: Tensor, counted: Tensor) -> Iterator[tuple[str, int, int, int]]:
    """Yields the kind and the place of each example, and which of the edges (2, 3, N, T) it is: its
    way, and its place among the N T queries."""
    for way, kind in enumerate(("weight", "moved")):
        values = edges[way, way + 1].where(counted, -math.inf)
        if not values.isnan().any():
            for place, at in enumerate(strongest(values), start=1):
                yield kind, place, way, at
    places = counted.flatten().nonzero()[:, 0]
    order = edges[0, 1].flatten()[places].argsort(descending=True, stable=True)
    middles = [(2 * part + 1) * len(order) // (2 * DECILES) for part in range(DECILES)]
    for part, middle in enumerate(middles):
        if middle not in middles[:part]:  # there are fewer than ten queries
            yield "decile", part + 1, 0, int(places[order[middle]])


def strongest(values: Tensor) -> list[int]:
    """The places of the STRONGEST of the values (N, T), from different windows if there are enough,
    the largest first."""
    best, queries = (x[:, :STRONGEST] for x in values.sort(dim=1, descending=True, stable=True))
    order = best.argsort(dim=0, descending=True, stable=True)  # of the windows, for each rank
    ranked = (order * values.size(1) + queries.gather(0, order)).T.flatten()  # first all best ones
    flat = values.flatten()
    ranked = ranked[flat[ranked] > -math.inf][:STRONGEST]
    return ranked[flat[ranked].argsort(descending=True, stable=True)].tolist()


def cut_out(labels: Sequence[str], query: int, key: int) -> tuple[list[str], tuple[int, int]]:
    """The labels around a query and a key, with GAP for those that are left out, and the indices of
    the query and the key."""
    first, last = around(labels, key), around(labels, query)
    places = [*range(first.start, last.stop)]
    if sum(map(len, labels[first.stop : last.start])) > BETWEEN:
        places = [*first, -1, *last]
    shown = [GAP if place < 0 else labels[place] for place in places]
    return shown, (places.index(query), places.index(key))


def around(labels: Sequence[str], place: int) -> range:
    """The places around one: as many as have BEFORE characters before it, and AFTER after it."""
    start, stop = place, place + 1
    while start > 0 and sum(map(len, labels[start - 1 : place])) <= BEFORE:
        start -= 1
    while stop < len(labels) and sum(map(len, labels[place + 1 : stop + 1])) <= AFTER:
        stop += 1
    return range(start, stop)
