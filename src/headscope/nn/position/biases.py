"""Position encodings that are added to the scores.

Shapes: T queries, S keys, H heads.
"""

import math

import torch
from torch import Tensor, nn

from headscope.errors import UserError
from headscope.nn.checks import check_alignment
from headscope.nn.position.base import Position


class Alibi(Position):
    """ALiBi (Press 2022): scores decrease linearly with distance. Every head has a different slope.

    Attention rounds the bias to the dtype of the queries. In bf16, it keeps 8 significant bits. So
    distances above 256 are rounded to multiples of 2, above 512 to 4, and so on. Parameters: none.
    """

    slopes: Tensor

    def __init__(self, **sizes: int) -> None:
        super().__init__(**sizes)
        slopes = torch.tensor(alibi_slopes(self.heads))
        self.register_buffer("slopes", slopes, persistent=False)

    def bias(self, queries: int, keys: int) -> Tensor:
        check_alignment(queries, keys, self.block_size)
        distance = distances(queries, keys, self.slopes.device).abs()
        return -self.slopes[:, None, None] * distance


def alibi_slopes(heads: int) -> list[float]:
    """The slopes of n = `heads` heads. If n is a power of two, the slopes are 2^(-8/n), 2^(-16/n),
    and so on. Otherwise they are the slopes for the next smaller power of two, followed by every
    second slope for the next larger power of two, as in the authors' code."""
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * (head + 1) / power) for head in range(power)]
    if power < heads:
        slopes += alibi_slopes(2 * power)[0::2][: heads - power]
    return slopes


def distances(queries: int, keys: int, device: torch.device | None = None) -> Tensor:
    """The query position minus the key position, (T, S). It is negative for later keys."""
    position = torch.arange(keys, device=device)
    return position[keys - queries :, None] - position


class Relative(Position):
    """The relative position bias of the T5 decoder (Raffel 2020, 2.1). Each head learns one number
    for each bucket of distances. All layers share these numbers.

    In the first half of the `buckets`, each contains a single distance. In the second half, each
    contains a range of distances; the ranges grow logarithmically up to `max_distance`. All larger
    distances share the last bucket. Keys after the query, which a causal mask hides, are in bucket
    0. T5 does not scale its scores; set `model.attention.scale=1` to do the same.

    Parameters: buckets * H. Raises UserError when `buckets` is odd or below 2, or when
    `max_distance` is not larger than `buckets` / 2.
    """

    bucket: Tensor

    def __init__(self, *, buckets: int = 32, max_distance: int = 128, **sizes: int) -> None:
        super().__init__(**sizes)
        if buckets < 2 or buckets % 2 or max_distance <= buckets // 2:
            wanted = f"even and at least 2, and max_distance={max_distance} more than half of it"
            raise UserError(f"buckets={buckets} must be {wanted}")
        self.table = nn.Embedding(buckets, self.heads)
        bucket = t5_buckets(torch.arange(self.block_size), buckets, max_distance)
        self.register_buffer("bucket", bucket, persistent=False)

    def bias(self, queries: int, keys: int) -> Tensor:
        check_alignment(queries, keys, self.block_size)
        distance = distances(queries, keys, self.bucket.device).clamp(min=0)
        return self.table(self.bucket[distance]).permute(2, 0, 1)  # (H, T, S)


def t5_buckets(distance: Tensor, buckets: int, max_distance: int) -> Tensor:
    """The bucket of each distance, for a tensor of any shape without negative distances."""
    exact = buckets // 2
    log_ratio = torch.log(distance.clamp(min=1) / exact) / math.log(max_distance / exact)  # 0 to 1
    far = exact + (log_ratio * (buckets - exact)).long()
    return torch.where(distance < exact, distance, far.clamp(max=buckets - 1))


class HeadBias(Position):
    """A learned bias for every combination of head, query position and key position, initialized to
    zero. It is the most general bias, and has the most parameters.

    Parameters: H * block_size^2.
    """

    limit = "its learned tables have no entries for later positions"

    def __init__(self, **sizes: int) -> None:
        super().__init__(**sizes)
        self.table = nn.Parameter(torch.empty(self.heads, self.block_size, self.block_size))
        nn.init.zeros_(self.table)

    def bias(self, queries: int, keys: int) -> Tensor:
        check_alignment(queries, keys, self.block_size)
        return self.table[:, keys - queries : keys, :keys]
