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

import numpy as np
import torch
from torch import Tensor

from headscope.analysis.metrics import counted_queries
from headscope.data.tokenizer import Tokenizer

MAX_COUNTED_TOKENS = 2**20
"""To find the frequent tokens of a corpus, at most this many tokens are counted, to limit time."""


@dataclass(frozen=True)
class TokenKinds:
    """Kinds of tokens in a vocabulary.

    - `pieces`: the bytes of each token. Special tokens, such as the end-of-text token, have none.
    - `frequent`: the mask (V,) of the most frequent tokens, together half of a corpus. None if none
      was counted.
    """

    pieces: Sequence[bytes]
    frequent: Tensor | None = None


def classify_vocabulary(tokenizer: Tokenizer, tokens: np.ndarray | None = None) -> TokenKinds:
    """Classify the tokens in the vocabulary of a tokenizer. If given, `tokens` (N,) are the tokens
    of a corpus. Its first MAX_COUNTED_TOKENS tokens are counted to find the frequent tokens."""
    size, frequent = tokenizer.vocab_size, None
    if tokens is not None:
        counts = np.bincount(tokens[:MAX_COUNTED_TOKENS], minlength=size)
        frequent = most_frequent(torch.from_numpy(counts))
    return TokenKinds([tokenizer.token_bytes(token) for token in range(size)], frequent)


def are_punctuation(pieces: Sequence[bytes]) -> list[bool]:
    """For each token of a text, whether it consists only of bytes of punctuation marks (Unicode
    category P) and line breaks. Spaces and tabs at both ends of a token are ignored. `pieces` are
    the bytes of the tokens. A character may be spread over several tokens."""
    of_bytes: list[bool] = []
    for character in b"".join(pieces).decode(errors="surrogateescape"):
        mark = character in "\r\n" or unicodedata.category(character).startswith("P")
        of_bytes += [mark] * len(character.encode(errors="surrogateescape"))
    results, start = [], 0
    for piece in pieces:
        first = start + len(piece) - len(piece.lstrip(b" \t"))
        last = start + len(piece.rstrip(b" \t"))
        results.append(first < last and all(of_bytes[first:last]))
        start += len(piece)
    return results


def most_frequent(counts: Tensor) -> Tensor:
    """The mask (V,) of the smallest set of tokens that makes up at least half of the corpus."""
    order = counts.argsort(descending=True, stable=True)
    more_frequent = counts[order].cumsum(0) - counts[order]  # exclusive cumulative sum
    frequent = torch.zeros_like(counts, dtype=torch.bool)
    frequent[order[2 * more_frequent < counts.sum()]] = True
    return frequent


def targets_in(tokens: Tensor, kinds: TokenKinds | None = None) -> dict[str, Tensor]:
    """The targets (N, T, T) of each metric that depends on the tokens (N, T), by its name.

    - `same_token`: earlier copies of the query's own token (duplicate-token heads, Wang 2022).
    - `punctuation`: punctuation marks and line breaks (separators, Clark 2019). Needs `kinds`.
    - `frequent`: the most frequent tokens, which make up half of a corpus. A low value of the
      metric means that the head attends to rare tokens (Voita 2019). Needs `kinds.frequent`.
    """
    same = (tokens[:, :, None] == tokens[:, None, :]).tril(-1)
    targets = {"same_token": same}
    if kinds is not None:  # the keys are the same for every query
        rows = [are_punctuation([kinds.pieces[token] for token in row]) for row in tokens.tolist()]
        marks = torch.tensor(rows, device=tokens.device)  # (N, T)
        targets["punctuation"] = marks[:, None].expand_as(same)
        if kinds.frequent is not None:
            frequent = kinds.frequent.to(tokens.device)[tokens]
            targets["frequent"] = frequent[:, None].expand_as(same)
    return targets


def mass_on(
    weights: Tensor, targets: Tensor, visible: Tensor, active: Tensor
) -> tuple[Tensor, Tensor]:
    """Returns two tensors (L, H): the weight on `targets` (N, T, T), summed over all queries that
    see a target, and the number of these queries. The metric is the first tensor divided by the
    second. `weights` are (L, N, H, T, T), the mask `visible` is (T, T) or (L, N, 1, T, T), and only
    the queries in the mask `active` (L, N, H, T) count."""
    targets = targets[:, None] & visible  # (N, 1, T, T)
    queries = targets.any(dim=-1) & counted_queries(visible) & active  # (L, N, H, T)
    mass = torch.where(targets, weights, 0.0).sum(dim=-1)
    return torch.where(queries, mass, 0.0).sum(dim=(1, 3)), queries.sum(dim=(1, 3))
