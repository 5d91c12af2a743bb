"""Metrics that depend on the tokens of the text, as pure functions of the weights and the tokens.

Shapes: V vocab_size, N texts, T tokens (both queries and keys), H heads, and any leading axes.

For each query, a metric has a set of target keys. The mask (N, T, T) of these targets is True where
the key is a target of the query. The metric is the weight on the targets, from 0 to 1, averaged
over all queries that see at least one target. As in `headscope.analysis.metrics`, queries that see
a single key are excluded.
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headscope.analysis.metrics import counted_queries, visible_keys


@dataclass(frozen=True)
class TokenKinds:
    """Kinds of tokens in a vocabulary, each as a mask (V,).

    - `special`: tokens that represent no text, such as the end-of-text token.
    - `punctuation`: tokens that consist only of punctuation marks and line breaks. Spaces and tabs
      at both ends of a token are ignored.
    - `frequent`: the most frequent tokens, which together make up half of a corpus. `frequent` is
      None if no corpus was counted.
    """

    special: Tensor
    punctuation: Tensor
    frequent: Tensor | None = None


def classify_tokens(texts: Sequence[str], counts: Tensor | None = None) -> TokenKinds:
    """Classify the V tokens of a vocabulary. `texts` contains the text of each token. If `counts`
    (V,) is given, it contains how often each token occurs in a corpus."""
    return TokenKinds(
        special=torch.tensor([text == "" for text in texts]),
        punctuation=torch.tensor([is_punctuation(text) for text in texts]),
        frequent=None if counts is None else most_frequent(counts),
    )


def is_punctuation(text: str) -> bool:
    """Whether a token consists only of punctuation marks (Unicode category P) and line breaks.
    Spaces and tabs at both ends of the token are ignored."""
    marks = text.strip(" \t")
    return marks != "" and all(
        mark in "\r\n" or unicodedata.category(mark).startswith("P") for mark in marks
    )


def most_frequent(counts: Tensor) -> Tensor:
    """The mask (V,) of the smallest set of tokens that makes up at least half of the corpus."""
    order = counts.argsort(descending=True, stable=True)
    more_frequent = counts[order].cumsum(0) - counts[order]  # exclusive cumulative sum
    frequent = torch.zeros_like(counts, dtype=torch.bool)
    frequent[order[2 * more_frequent < counts.sum()]] = True
    return frequent


def earlier_copies(tokens: Tensor) -> Tensor:
    """For tokens (N, T), the mask (N, T, T) of keys that come before the query and have the same
    token as the query."""
    same = tokens[:, :, None] == tokens[:, None, :]
    return same.tril(-1)


def keys_of_kind(tokens: Tensor, kind: Tensor) -> Tensor:
    """For tokens (N, T), the mask (N, T, T) of keys whose token is in the mask `kind` (V,). The
    mask is the same for every query."""
    keys = kind.to(tokens.device)[tokens]
    return keys[:, None, :].expand(-1, tokens.size(1), -1)


def targets_in(tokens: Tensor, kinds: TokenKinds | None = None) -> dict[str, Tensor]:
    """The targets (N, T, T) of each metric that depends on the tokens (N, T), by the name of the
    metric.

    - `same_token`: earlier copies of the query's own token (duplicate-token heads, Wang 2022).
    - `punctuation`: punctuation marks and line breaks (heads that attend to separators, Clark
      2019). Needs `kinds`.
    - `frequent`: the most frequent tokens, which make up half of a corpus. A low value of the
      metric means that the head attends to rare tokens (Voita 2019). Needs `kinds.frequent`.
    """
    targets = {"same_token": earlier_copies(tokens)}
    if kinds is not None:
        targets["punctuation"] = keys_of_kind(tokens, kinds.punctuation)
        if kinds.frequent is not None:
            targets["frequent"] = keys_of_kind(tokens, kinds.frequent)
    return targets


def mass_on(weights: Tensor, targets: Tensor, *, causal: bool = True) -> tuple[Tensor, Tensor]:
    """Returns two tensors: the weight on `targets` (N, T, T), summed over all queries that see a
    target, (..., H), and the number of these queries, (). The metric is the first tensor divided by
    the second. `weights` has shape (..., N, H, T, T)."""
    visible = visible_keys(weights, causal=causal)
    targets = targets & visible
    queries = targets.any(dim=-1) & counted_queries(visible)  # (N, T)
    counted = targets & queries[..., None]
    mass = torch.where(counted[:, None], weights, 0.0).sum(dim=(-2, -1))  # (..., N, H)
    return mass.sum(dim=-2), queries.sum()
