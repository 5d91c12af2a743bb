"""The model: attention, position encodings, blocks and the GPT made of them. Imports torch only."""

from headscope.nn.attention import (
    AdditiveAttention,
    Attention,
    MultiHeadAttention,
    StackedHeads,
    grouped_query,
    mask_from_padding,
    mask_per_sequence,
    multi_head,
    multi_query,
    single_head,
)
from headscope.nn.gpt import GPT
from headscope.nn.position import (
    Alibi,
    Digits,
    HeadBias,
    Index,
    Learned,
    NoPosition,
    Normalized,
    Position,
    Relative,
    Rotary,
    Sinusoidal,
)

__all__ = [
    "GPT",
    "AdditiveAttention",
    "Alibi",
    "Attention",
    "Digits",
    "HeadBias",
    "Index",
    "Learned",
    "MultiHeadAttention",
    "NoPosition",
    "Normalized",
    "Position",
    "Relative",
    "Rotary",
    "Sinusoidal",
    "StackedHeads",
    "grouped_query",
    "mask_from_padding",
    "mask_per_sequence",
    "multi_head",
    "multi_query",
    "single_head",
]
