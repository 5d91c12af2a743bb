"""All attention variants, and functions that create masks for them."""

from headscope.nn.attention.additive import AdditiveAttention
from headscope.nn.attention.dot_product import HeadOutputs, scaled_dot_product
from headscope.nn.attention.masks import (
    mask_from_documents,
    mask_from_padding,
    mask_per_sequence,
)
from headscope.nn.attention.multi_head import MultiHeadAttention
from headscope.nn.attention.named import grouped_query, multi_head, multi_query, single_head
from headscope.nn.attention.stacked import StackedHeads

__all__ = [
    "AdditiveAttention",
    "HeadOutputs",
    "MultiHeadAttention",
    "StackedHeads",
    "grouped_query",
    "mask_from_documents",
    "mask_from_padding",
    "mask_per_sequence",
    "multi_head",
    "multi_query",
    "scaled_dot_product",
    "single_head",
]
