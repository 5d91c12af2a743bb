"""What each head does in many texts: for each head, short texts in which a query looks at a key.

Shapes: B batch, L layers, H heads, D head_dim, C embed_dim, N windows, T tokens (queries and keys).
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from headscope.analysis.head_outputs import moved_values, output_matrices
from headscope.analysis.head_statistics import in_batches, visible_in
from headscope.analysis.metrics import first_keys, visible_keys
from headscope.analysis.rows import Rows
from headscope.analysis.snapshot import shortened
from headscope.data.labels import visible
from headscope.data.tokenizer import Tokenizer
from headscope.nn import GPT
from headscope.nn.capture import capture

STRONGEST = 3
DECILES = 10
MAX_UNCOUNTED = 16
CHARACTERS = 36  # shown before a query and a key, and a third of it after them
GAP = " … "


@dataclass(frozen=True, repr=False)
class Example:
    """A query that looks at a key, in one of many windows of tokens.

    - `head`: such as L1H0. `kind`: `weight`, `moved` or `decile` (see `find_examples`).
    - `weight`: the attention weight. `moved`: the norm of what moves from the key to the query: the
      weight times the head's value of the key, after the output projection. None if the head writes
      something else (see `moved_values`).
    - `window`, `query`, `key`: the number of the window, and two places in it, from 0.
    - `labels` of the tokens around both, with GAP for those that are left out. `marked` are the
      indices of the query and the key in this list.
    """

    head: str
    kind: str
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

    def __repr__(self) -> str:
        moved = "" if self.moved is None else f", moved {self.moved:.3g}"
        return f"<{self.head} {self.kind}: weight {self.weight:.3f}{moved}: {self.text}>"


@torch.no_grad()
def find_examples(model: GPT, windows: Tensor, tokenizer: Tokenizer) -> list[list[list[Example]]]:
    """Examples of what each head does in windows (N, T) of tokens, by layer and head. Each is the
    strongest edge of its query, besides that to the first token, where heads rest:

    - `weight`: those with the largest weights, the largest first, in STRONGEST different windows.
    - `moved`: the same for the edges along which most is moved.
    - `decile`: the queries are sorted by their largest weight, and cut into ten equal parts. The
      middle one of each part, the largest weights first, shows what the head does ordinarily.

    A query that sees few keys has large weights for no other reason. So a query counts only if it
    sees more than MAX_UNCOUNTED keys, or than a quarter of the most that any query of the layer
    sees.
    """
    windows = windows.to(model.device)
    mask = visible_in(model, windows)
    seen = torch.arange(1, windows.size(1) + 1).expand(len(model.attentions), *windows.shape)
    seen = seen if mask is None else mask[:, :, 0].sum(dim=-1).cpu()  # (L, N, T)
    most = seen.amax(dim=(1, 2), keepdim=True)
    counted = seen > torch.minimum((most / 4).ceil(), most - 1).clamp(max=MAX_UNCOUNTED)
    found = [strongest_edges(model, batch) for batch in in_batches(model, windows)]
    edges = torch.cat(found, dim=4)
    every = [tokenizer.labels(tokens) for tokens in windows.tolist()]
    labels = [[shortened(visible(label)) for label in window] for window in every]

    def example(layer: int, head: int, kind: str, way: int, window: int, query: int) -> Example:
        place, weight, moved = edges[layer, head, way, :, window, query].tolist()
        key, moved = int(place), None if math.isnan(moved) else moved
        shown = cut_out(labels[window], query, key)
        return Example(f"L{layer}H{head}", kind, weight, moved, window, query, key, *shown)

    return [
        [
            [example(layer, head, *chosen) for chosen in choose(of_head, counted[layer])]
            for head, of_head in enumerate(of_layer)
        ]
        for layer, of_layer in enumerate(edges)
    ]


def shown_examples(
    found: list[list[list[Example]]], windows: Tensor, source: str
) -> list[list[dict[str, Any]]]:
    """What pages show, by layer and head: the `examples`, and the text `measured`, which names the
    `source` and the number of tokens of the `windows` (N, T) that were searched."""
    measured = f"{windows.numel():,} tokens of {source}"
    return [
        [{"measured": measured, "examples": [*map(asdict, of_head)]} for of_head in of_layer]
        for of_layer in found
    ]


def example_rows(found: list[list[list[Example]]]) -> Rows:
    """One row per example, with the query and the key marked in its text."""
    rows = [{**asdict(one), "text": one.text} for one in chain(*chain(*found))]
    return [{name: row[name] for name in row if name not in ("labels", "marked")} for row in rows]


def strongest_edges(model: GPT, batch: Tensor) -> Tensor:
    """For each query in windows (B, T), the edge with the largest weight, and the edge along which
    most is moved, besides that to the first token: its key, its weight, and what is moved.
    (L, H, 2, 3, B, T)."""
    captured, mask, layers = capture(model, batch), visible_in(model, batch), []
    for layer, (block, weights) in enumerate(zip(model.blocks, captured.weights, strict=True)):
        values = moved_values(block, captured.residual[layer], weights, captured.outputs[layer])
        pairs = zip(values.unbind(1), output_matrices(block.attention), strict=True)
        norms = torch.stack([(value @ matrix.T).norm(dim=-1) for value, matrix in pairs], dim=1)
        moved = weights * norms[:, :, None]  # (B, H, T, T)
        seen = visible_keys(weights, None if mask is None else mask[layer])
        others = seen & ~first_keys(seen)
        ways = []
        for values in (weights, moved):
            judged = values.where(others, seen.float() - 2)  # if it sees no other, the first one
            keys = judged.argmax(dim=-1, keepdim=True)  # (B, H, T, 1)
            ways.append(torch.cat([keys, weights.gather(-1, keys), moved.gather(-1, keys)], dim=-1))
        layers.append(torch.stack(ways))
    return torch.stack(layers).permute(0, 3, 1, 5, 2, 4).cpu()


def choose(edges: Tensor, counted: Tensor) -> list[tuple[str, int, int, int]]:
    """The examples among the edges (2, 3, N, T) of a head: the kind, which of the two edges of the
    query it is, the window and the query. `counted` (N, T) are the queries that count."""
    chosen = []
    for way, kind in enumerate(("weight", "moved")):
        best, queries = edges[way, way + 1].where(counted, -math.inf).max(dim=1)  # (N,)
        order = best.argsort(descending=True, stable=True)[:STRONGEST].tolist()
        found = [window for window in order if best[window] > -math.inf]  # not NaN
        chosen += [(kind, way, window, int(queries[window])) for window in found]
    places = counted.nonzero()[edges[0, 1][counted].argsort(descending=True, stable=True)]
    middles = [(2 * part + 1) * len(places) // (2 * DECILES) for part in range(DECILES)]
    # With fewer than ten queries, some are in the middle of several parts.
    return chosen + [("decile", 0, *places[middle].tolist()) for middle in dict.fromkeys(middles)]


def cut_out(labels: Sequence[str], query: int, key: int) -> tuple[list[str], tuple[int, int]]:
    """The labels around a query and a key, and the indices of these two."""
    before = max(3, CHARACTERS * len(labels) // len("".join(labels)))
    near = [range(at - before, at + before // 3 + 1) for at in (query, key)]
    places = [place for place in range(len(labels)) if any(place in around for around in near)]
    gap = next((place for place in places if place > key and place - 1 not in places), None)
    if gap is not None:
        places.insert(places.index(gap), -1)
    shown = [GAP if place < 0 else labels[place] for place in places]
    return shown, (places.index(query), places.index(key))
