"""Embeddings of n-grams, which are sequences of n tokens.

Shapes: B batch, T tokens, N newest tokens, C embed_dim.
"""

import torch.nn.functional as F
from torch import Tensor, nn

MULTIPLIER, PRIME = 1_640_531_513, 2**31 - 1
"""Constants of the hash function. Both are below 2^31, so no product overflows a 64-bit integer."""


class NGramEmbedding(nn.Module):
    """Adds the embeddings of the n-grams that end at each position, for n = 2, 3, ..., `ngrams`.

    Each n has its own table of `buckets` embeddings, initialized to zero. A hash function maps an
    n-gram to one of them, so several n-grams may share one (Svenstrup 2017: Hash Embeddings). An
    n-gram that would begin before the first token of the sequence or of its document is omitted.

    Parameters: (`ngrams` - 1) `buckets` C.
    """

    def __init__(self, ngrams: int, buckets: int, embed_dim: int) -> None:
        super().__init__()
        self.ngrams, self.buckets = ngrams, buckets
        self.tables = nn.ModuleList(nn.Embedding(buckets, embed_dim) for _ in range(ngrams - 1))

    def forward(self, x: Tensor, tokens: Tensor, documents: Tensor | None = None) -> Tensor:
        """Adds to x (B, N, C) the embeddings of the n-grams that end at the last N tokens of
        `tokens` (B, T). `documents` (B, T) has the number of each token's document."""
        count = x.size(1)
        newest = slice(-(count + self.ngrams - 1), None)
        tokens = tokens[:, newest]
        documents = None if documents is None else documents[:, newest]
        key = tokens
        for n, table in enumerate(self.tables, start=2):
            key = (key[:, 1:] * MULTIPLIER + tokens[:, : 1 - n]) % PRIME  # (B, T - n + 1)
            embedded = table(key[:, -count:] % self.buckets)
            if documents is not None:
                crosses = documents[:, n - 1 :] != documents[:, : 1 - n]  # (B, T - n + 1)
                embedded = embedded.masked_fill(crosses[:, -count:, None], 0.0)
            x = x + F.pad(embedded, (0, 0, count - embedded.size(1), 0))
        return x
