"""The sizes of a model, with the defaults filled in."""

import math
from dataclasses import dataclass

from headscope.config.model import ModelConfig, MultiQueryConfig, SwiGluConfig


@dataclass(frozen=True)
class Sizes:
    """Sizes that a `ModelConfig` leaves open if their keys are null."""

    heads: int
    kv_heads: int
    head_dim: int
    ff_dim: int

    @classmethod
    def of(cls, model: ModelConfig) -> "Sizes":
        one = isinstance(model.attention, MultiQueryConfig)
        kv_heads = model.heads if model.kv_heads is None else model.kv_heads
        gated = isinstance(model.feed_forward, SwiGluConfig)
        width = 8 * math.ceil(model.embed_dim / 3) if gated else 4 * model.embed_dim
        return cls(
            heads=model.heads,
            kv_heads=1 if one else kv_heads,
            head_dim=model.embed_dim // model.heads if model.head_dim is None else model.head_dim,
            ff_dim=width if model.ff_dim is None else model.ff_dim,
        )

    @property
    def qkv_rows(self) -> tuple[int, int, int]:
        """The numbers of rows of the matrices of queries, keys and values."""
        kv = self.kv_heads * self.head_dim
        return self.heads * self.head_dim, kv, kv
