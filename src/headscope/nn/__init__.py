"""The model: attention, position encodings, blocks and the GPT. Imports only torch."""

from headscope.nn.attention import (
    AdditiveAttention,
    HeadOutputs,
    MultiHeadAttention,
    StackedHeads,
    grouped_query,
    mask_from_documents,
    mask_from_padding,
    mask_per_sequence,
    multi_head,
    multi_query,
    scaled_dot_product,
    single_head,
)
from headscope.nn.cache import Cache, Past, cache_bytes_per_token, make_cache
from headscope.nn.feed_forward import FeedForward, SwiGLU, gelu, gelu_tanh, relu_squared
from headscope.nn.from_keys import gpt_from_keys
from headscope.nn.gpt import GPT
from headscope.nn.norm import layer_norm, rms_norm
from headscope.nn.position.absolute import Learned, Sinusoidal
from headscope.nn.position.base import NoPosition, Position
from headscope.nn.position.biases import Alibi, HeadBias, Relative
from headscope.nn.position.historical import Digits, Index, Normalized, add_position_over_length
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
    "relu_squared",
    "rms_norm",
    "scaled_dot_product",
    "single_head",
]

PARTS = {name: globals()[name] for name in __all__}
"""Everything that this package exports, by name."""
