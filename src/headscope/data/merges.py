"""Recovers the merges of a byte-pair encoding from its ranks.

tiktoken stores the rank of each token, and merges any two neighbours whose bytes together are a
token, the lowest rank first. Other tools store a list of merges: pairs of tokens. Both give the
same tokens if each token has exactly one pair: the two parts that remain when its bytes are encoded
with the lower ranks alone. The proof: consider the bytes of a token inside a text, at the moment
when tiktoken merges its last two parts. Until then, no merge crossed the token's ends, so the
merges inside were those of encoding the token alone. All of them had lower ranks, because otherwise
more than two parts would have remained. So the last two parts are the token's pair.
"""

from collections.abc import Mapping
from itertools import pairwise

Pair = tuple[bytes, bytes]


MAX_WORK = 10**8
"""Maximum sum of the squared lengths of all tokens, which limits the time. GPT-2 has 3 million."""


def merges_of_ranks(ranks: Mapping[bytes, int]) -> list[Pair] | None:
    """The pair that is merged to each token of more than one byte, in the order of the ranks. None
    if a token has no such pair, or if the tokens are too long to find this out."""
    if sum(len(token) ** 2 for token in ranks) > MAX_WORK:
        return None
    merges: list[Pair] = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        if len(token) > 1:
            parts = encoded_below(token, ranks, rank)
            if len(parts) != 2:
                return None
            merges.append((parts[0], parts[1]))
    return merges


def encoded_below(text: bytes, ranks: Mapping[bytes, int], limit: int) -> list[bytes]:
    """The parts of a text after all merges to tokens whose rank is below `limit`."""
    parts = [text[place : place + 1] for place in range(len(text))]
    while len(parts) > 1:
        pair_ranks = [ranks.get(left + right, limit) for left, right in pairwise(parts)]
        lowest = min(pair_ranks)
        if lowest >= limit:
            break
        place = pair_ranks.index(lowest)
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    return parts
