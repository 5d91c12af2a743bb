"""The model: attention, position encodings, blocks and the GPT. Imports only torch."""

from headscope.nn.attention import MultiHead, MultiHeadAttention
from headscope.nn.attention_variants import (
    AdditiveAttention,
    GroupedQuery,
    MultiQuery,
    SingleHead,
    StackedHeads,
    scaled_dot_product,
)
from headscope.nn.block import Block, ParallelBlock
from headscope.nn.cache import Cache, Past, cache_bytes_per_token
from headscope.nn.dot_product import HeadOutputs
from headscope.nn.feed_forward import (
    FeedForward,
    Gelu,
    GeluTanh,
    ReluSquared,
    SwiGLU,
    no_feed_forward,
)
from headscope.nn.gpt import GPT
from headscope.nn.masks import mask_from_documents, mask_from_padding, mask_per_sequence
from headscope.nn.norm import LayerNorm, NoNorm, RMSNorm
from headscope.nn.position.absolute import (
    Digits,
    Index,
    Learned,
    Normalized,
    Sinusoidal,
    add_position_over_length,
)
from headscope.nn.position.base import NoPosition, Position
from headscope.nn.position.biases import Alibi, HeadBias, Relative
from headscope.nn.position.rotary import Rotary

__all__ = ["GPT", "Block", "Cache", "ParallelBlock", "Past", "cache_bytes_per_token"]
__all__ += ["HeadOutputs", "MultiHead", "MultiHeadAttention", "scaled_dot_product"]
__all__ += ["AdditiveAttention", "GroupedQuery", "MultiQuery", "SingleHead", "StackedHeads"]
__all__ += ["mask_from_documents", "mask_from_padding", "mask_per_sequence"]
__all__ += ["Alibi", "Digits", "HeadBias", "Index", "Learned", "NoPosition", "Normalized"]
__all__ += ["Position", "Relative", "Rotary", "Sinusoidal", "add_position_over_length"]
__all__ += ["LayerNorm", "NoNorm", "RMSNorm"]
__all__ += ["FeedForward", "Gelu", "GeluTanh", "ReluSquared", "SwiGLU", "no_feed_forward"]

PARTS = {name: globals()[name] for name in __all__}
"""Everything that this package exports, by name."""
