"""The model: attention, position encodings, blocks and the GPT. Imports only torch."""

from headscope.nn.attention import MultiHeadAttention
from headscope.nn.attention_variants import AdditiveAttention, StackedHeads, scaled_dot_product
from headscope.nn.cache import Cache, Past
from headscope.nn.dot_product import HeadOutputs
from headscope.nn.feed_forward import (
    FeedForward,
    SwiGLU,
    gelu,
    gelu_tanh,
    no_feed_forward,
    relu_squared,
)
from headscope.nn.from_keys import (
    gpt_from_keys,
    grouped_query,
    multi_head,
    multi_query,
    single_head,
)
from headscope.nn.gpt import GPT, cache_bytes_per_token, make_cache
from headscope.nn.masks import mask_from_documents, mask_from_padding, mask_per_sequence
from headscope.nn.norm import layer_norm, no_norm, rms_norm
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

__all__ = [
    "GPT",
    "AdditiveAttention",
    "Alibi",
    "Cache",
    "Digits",
    "FeedForward",
    "HeadBias",
    "HeadOutputs",
    "Index",
    "Learned",
    "MultiHeadAttention",
    "NoPosition",
    "Normalized",
    "Past",
    "Position",
    "Relative",
    "Rotary",
    "Sinusoidal",
    "StackedHeads",
    "SwiGLU",
    "add_position_over_length",
    "cache_bytes_per_token",
    "gelu",
    "gelu_tanh",
    "gpt_from_keys",
    "grouped_query",
    "layer_norm",
    "make_cache",
    "mask_from_documents",
    "mask_from_padding",
    "mask_per_sequence",
    "multi_head",
    "multi_query",
    "no_feed_forward",
    "no_norm",
    "relu_squared",
    "rms_norm",
    "scaled_dot_product",
    "single_head",
]

PARTS = {name: globals()[name] for name in __all__}
"""Everything that this package exports, by name."""
