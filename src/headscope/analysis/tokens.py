"""What a head looks at, by the tokens of the text: pure functions of its weights and the text.

Shapes: V vocab_size, N texts, T tokens, each a query and a key, H heads, and any axes before.

A target is a set of keys for every query, as a mask (N, T, T). A figure is the mean weight on the
target over the queries of all texts that see at least one key of it, from 0 to 1. As in
`headscope.analysis.metrics`, a query that sees one key alone is left out.
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headscope.analysis.metrics import choosing, visible_keys


@dataclass(frozen=True)
class TokenKinds:
    """Which tokens of a vocabulary are of some kind, each a mask (V,).

    `special`: stands for no text, such as the end of text. `punctuation`: punctuation marks and
    line breaks alone, with or without spaces around them. `frequent`: of the most frequent tokens
    that together make up half of a corpus; None where there is no corpus to count.
    """

    special: Tensor
    punctuation: Tensor
    frequent: Tensor | None = None


def token_kinds(texts: Sequence[str], counts: Tensor | None = None) -> TokenKinds:
    """The kinds of tokens, from the text of each, V of them, and from how often each is in a
    corpus (V,)."""
    return TokenKinds(
        special=torch.tensor([text == "" for text in texts]),
        punctuation=torch.tensor([is_punctuation(text) for text in texts]),
        frequent=None if counts is None else most_frequent(counts),
    )


def is_punctuation(text: str) -> bool:
    """Whether a token is punctuation marks (Unicode's category P) and line breaks alone."""
    marks = text.strip(" \t")
    return marks != "" and all(
        mark in "\r\n" or unicodedata.category(mark).startswith("P") for mark in marks
    )


def most_frequent(counts: Tensor) -> Tensor:
    """The fewest tokens that make up at least half of all, as a mask (V,)."""
    order = counts.argsort(descending=True, stable=True)
    more_frequent = counts[order].cumsum(0) - counts[order]  # occurrences of those before it
    frequent = torch.zeros_like(counts, dtype=torch.bool)
    frequent[order[2 * more_frequent < counts.sum()]] = True
    return frequent


def earlier_copies(tokens: Tensor) -> Tensor:
    """Keys that come before the query and are the same token, (N, T) to (N, T, T)."""
    same = tokens[:, :, None] == tokens[:, None, :]
    return same.tril(-1)


def keys_of_kind(tokens: Tensor, kind: Tensor) -> Tensor:
    """Keys whose token is in the mask `kind` (V,), alike for every query, (N, T) to (N, T, T)."""
    keys = kind.to(tokens.device)[tokens]
    return keys[:, None, :].expand(-1, tokens.size(1), -1)


def targets_in(tokens: Tensor, kinds: TokenKinds | None = None) -> dict[str, Tensor]:
    """The targets of all token figures in tokens (N, T) by the figure's name, (N, T, T) each.

    - `same_token`: earlier copies of the query's own token (duplicate-token heads, Wang 2022);
    - `punctuation`: Clark 2019 found heads that look at separators, full stops and commas;
    - `frequent`: the frequent half of the text. What is missing to 1 goes to the rare half (heads
      that look at rare tokens: Voita 2019).

    The last two need the `kinds` of tokens.
    """
    targets = {"same_token": earlier_copies(tokens)}
    if kinds is not None:
        targets["punctuation"] = keys_of_kind(tokens, kinds.punctuation)
        if kinds.frequent is not None:
            targets["frequent"] = keys_of_kind(tokens, kinds.frequent)
    return targets


def mass_on(weights: Tensor, targets: Tensor, *, causal: bool = True) -> tuple[Tensor, Tensor]:
    """The weight on targets (N, T, T) of weights (..., N, H, T, T), summed over the queries that
    see a target, (..., H), and how many these queries are, (): their quotient is the figure."""
    visible = visible_keys(weights, causal=causal)
    targets = targets & visible
    queries = targets.any(dim=-1) & choosing(visible)  # (N, T)
    counted = targets & queries[..., None]
    mass = torch.where(counted[:, None], weights, 0.0).sum(dim=(-2, -1))  # (..., N, H)
    return mass.sum(dim=-2), queries.sum()
