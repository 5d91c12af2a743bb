"""Checks of what users give to the model and to its layers. Each check raises UserError.

Shapes: B batch, T tokens.
"""

import math
import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from headscope.errors import UserError


def check_positive(**values: float | None) -> None:
    """Checks that every number is above 0 and finite. None is accepted."""
    for name, value in values.items():
        if value is not None and not 0 < value < math.inf:
            raise UserError(f"{name}={value} must be above 0 and finite")


def check_length(tokens: int, block_size: int) -> None:
    """Checks that there are at most `block_size` tokens. A slice would silently be too short."""
    if tokens > block_size:
        raise UserError(f"{tokens} tokens are more than block_size={block_size}")


def check_alignment(queries: int, keys: int, block_size: int, start: int = 0) -> None:
    """Checks that there are no more queries than keys, and at most `block_size` positions."""
    if queries > keys:
        raise UserError(f"{queries} queries, but {keys} keys: queries are aligned to the last keys")
    check_length(start + keys, block_size)


def token_ids(tokens: Any, vocab_size: int) -> list[int]:
    """Converts a sequence of tokens to a list of integers, all of them in the vocabulary."""
    if not isinstance(tokens, Iterable):
        raise UserError(f"tokens are {tokens!r}: give a sequence of integers")
    ids = []
    for number, token in enumerate(tokens):
        try:
            ids.append(operator.index(token))
        except TypeError:
            ids.append(-1)
        if not 0 <= ids[-1] < vocab_size:
            problem = f"token {number} is {token!r}, which is not in the vocabulary"
            raise UserError(f"{problem}: give integers from 0 to {vocab_size - 1}")
    return ids


def check_tokens(tokens: Tensor, block_size: int) -> None:
    """Checks that `tokens` are non-empty integers (B, T), and that T is at most `block_size`."""
    integers = tokens.dtype in (torch.int64, torch.int32)
    if tokens.dim() != 2 or tokens.numel() == 0 or not integers:
        given = f"tokens are {tokens.dtype} of shape {tuple(tokens.shape)}"
        raise UserError(f"{given}: give torch.int64 (B, T) with at least one token")
    check_length(tokens.size(1), block_size)


def resolve_head_dim(*, embed_dim: int, heads: int, head_dim: int | None) -> int:
    """Returns `head_dim` or, if it is None, `embed_dim` / `heads`. Checks all three."""
    check_positive(embed_dim=embed_dim, heads=heads, head_dim=head_dim)
    if head_dim is not None:
        return head_dim
    if embed_dim % heads:
        problem = f"embed_dim={embed_dim} must be a multiple of heads={heads}"
        raise UserError(f"{problem}: change one of them, or set head_dim")
    return embed_dim // heads


def check_kv_heads(name: str, *, kv_heads: int | None, heads: int, only: int) -> None:
    """Checks that `kv_heads` is None or `only`, its value in the attention `name`."""
    if kv_heads not in (None, only):
        problem = f"kv_heads={kv_heads}: in {name} with heads={heads} it must be {only}"
        raise UserError(f"{problem}; remove it, or set model/attention=grouped_query")


def check_sizes(layer: Any, *, block_size: int | None, causal: bool) -> None:
    """Checks that the sizes of `layer`, a `MultiHeadAttention`, do not contradict one another."""
    check_positive(block_size=block_size, out_dim=layer.out_dim, scale=layer.scale)
    if not 0 <= layer.dropout < 1:
        raise UserError(f"dropout={layer.dropout} must be at least 0 and below 1")
    heads, kv_heads = layer.heads, layer.kv_heads
    if kv_heads < 1 or heads % kv_heads:
        raise UserError(f"heads={heads} must be a multiple of kv_heads={kv_heads}: change one")
    if not layer.has_out_proj and heads * layer.head_dim != layer.out_dim:
        width = f"heads={heads} times head_dim={layer.head_dim}"
        raise UserError(f"out_proj=false: {width} must equal the output width {layer.out_dim}")
    check_positive(layer_window=layer.layer_window)
    if layer.layer_window is not None and not causal:
        raise UserError(f"layer_window={layer.layer_window} needs causal attention")
    if causal and block_size is None:
        raise UserError("causal attention needs block_size, the maximum sequence length")
