"""Encodings that are added to the scores.

Shapes: T queries, S keys, H heads.
"""

import math

import torch
from torch import Tensor, nn

from headscope.errors import UserError
from headscope.nn.position.base import Position, distances


class Alibi(Position):
    """Scores fall in a straight line with distance, in every head at another slope (Press 2022).

    The bias is in float32. Attention rounds it to the dtype of its queries: in bf16 distances above
    256 are multiples of 2, above 512 of 4, and so on, in both paths.

    Parameters: none; the slopes are those of `alibi_slopes`.
    """

    slopes: Tensor

    def __init__(self, **sizes: int) -> None:
        super().__init__(**sizes)
        slopes = torch.tensor(alibi_slopes(self.heads))
        self.register_buffer("slopes", slopes, persistent=False)

    def bias(self, queries: int, keys: int) -> Tensor:
        self.check_pairs(queries, keys)
        distance = distances(queries, keys, self.slopes.device).abs()
        return -self.slopes[:, None, None] * distance


def alibi_slopes(heads: int) -> list[float]:
    """2^(-8/n), 2^(-16/n), ... for n heads when n is a power of two. Otherwise those of the next
    smaller power, and after them every second of the next larger one's (the authors' code)."""
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * (head + 1) / power) for head in range(power)]
    if power < heads:
        slopes += alibi_slopes(2 * power)[0::2][: heads - power]
    return slopes


class Relative(Position):
    """A learned number for every head and every bucket of distances, shared by all layers
    (Raffel 2020, 2.1: T5; its decoder's buckets).

    Half of the `buckets` are one distance each, the others grow with it, up to `max_distance`;
    beyond it all share the last. Keys that come later, which a causal mask hides, are in bucket 0.
    T5 does not scale its scores; `model.attention.scale=1` does as it did.

    Parameters: buckets * H. Raises UserError when `buckets` is odd or below 2, or `max_distance`
    not above half of them.
    """

    bucket: Tensor

    def __init__(self, *, buckets: int = 32, max_distance: int = 128, **sizes: int) -> None:
        super().__init__(**sizes)
        if buckets < 2 or buckets % 2 or max_distance <= buckets // 2:
            raise UserError(
                f"buckets={buckets} must be an even number, and max_distance={max_distance} more "
                "than half of it"
            )
        self.table = nn.Embedding(buckets, self.heads)
        bucket = t5_buckets(torch.arange(self.block_size), buckets, max_distance)
        self.register_buffer("bucket", bucket, persistent=False)

    def bias(self, queries: int, keys: int) -> Tensor:
        self.check_pairs(queries, keys)
        distance = distances(queries, keys, self.bucket.device).clamp(min=0)
        return self.table(self.bucket[distance]).permute(2, 0, 1)  # (H, T, S)


def t5_buckets(distance: Tensor, buckets: int, max_distance: int) -> Tensor:
    """The bucket of each distance, of any shape and 0 or more."""
    exact = buckets // 2
    share = torch.log(distance.clamp(min=1) / exact) / math.log(max_distance / exact)  # 0 to 1
    far = exact + (share * (buckets - exact)).long()
    return torch.where(distance < exact, distance, far.clamp(max=buckets - 1))


class HeadBias(Position):
    """A learned table in every head, a number for each pair of a query's and a key's position.

    The most that a bias can say, at the greatest cost, and of nothing beyond `block_size`. It
    starts at zero.

    Parameters: H * block_size^2.
    """

    limit = "its tables have a learned number for every pair of positions up to there, none beyond"

    def __init__(self, **sizes: int) -> None:
        super().__init__(**sizes)
        self.table = nn.Parameter(torch.empty(self.heads, self.block_size, self.block_size))
        nn.init.zeros_(self.table)

    def bias(self, queries: int, keys: int) -> Tensor:
        self.check_pairs(queries, keys)
        return self.table[:, keys - queries : keys, :keys]
