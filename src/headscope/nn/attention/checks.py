"""Checks the arguments of attention layers.

Shapes: B batch, T queries, S keys, C embed_dim, H heads, K kv heads.
"""

import math
from typing import Any

from torch import Tensor

from headscope.errors import UserError
from headscope.nn.attention.masks import check_mask
from headscope.nn.cache import Past
from headscope.nn.position import Position


def resolve_head_dim(*, embed_dim: int, heads: int, head_dim: int | None) -> int:
    """Returns `head_dim` or, if it is None, `embed_dim` / `heads`.

    Raises UserError when a size is below 1. Without `head_dim`, also raises UserError when
    `embed_dim` is not a multiple of `heads`.
    """
    for name, size in (("embed_dim", embed_dim), ("heads", heads)):
        if size < 1:
            raise UserError(f"{name}={size} must be at least 1")
    if head_dim is not None:
        if head_dim < 1:
            raise UserError(f"head_dim={head_dim} must be at least 1")
        return head_dim
    if embed_dim % heads:
        raise UserError(
            f"embed_dim={embed_dim} must be a multiple of heads={heads}, because every head gets "
            "an equal part of it: change one of them, or set head_dim"
        )
    return embed_dim // heads


def check_sizes(attention: Any, *, block_size: int | None, causal: bool) -> None:
    """Raises UserError when the sizes of a `MultiHeadAttention` do not fit together."""
    for name, size in (("block_size", block_size), ("out_dim", attention.out_dim)):
        if size is not None and size < 1:
            raise UserError(f"{name}={size} must be at least 1")
    if not 0 <= attention.dropout < 1:
        raise UserError(f"dropout={attention.dropout} must be at least 0 and below 1")
    heads, kv_heads = attention.heads, attention.kv_heads
    if kv_heads < 1 or heads % kv_heads:
        raise UserError(
            f"heads={heads} must be a multiple of kv_heads={kv_heads}: every key head serves the "
            "same number of query heads"
        )
    if not 0 < attention.scale < math.inf:
        raise UserError(f"scale={attention.scale} must be above 0 and finite")
    if not attention.has_out_proj and heads * attention.head_dim != attention.out_dim:
        raise UserError(
            f"out_proj=false needs heads={heads} times head_dim={attention.head_dim} equal to the "
            f"output width {attention.out_dim}"
        )
    if causal and block_size is None:
        raise UserError("causal attention needs block_size, the maximum sequence length")


def check_inputs(
    attention: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None,
    position: Position | None,
    past: Past | None,
) -> None:
    """Raises UserError when the inputs do not fit the attention layer. The query (B, T, C), the key
    (B, S, C) and the value (B, S, C) must be non-empty floating-point tensors. The batch axis B may
    be missing in all three. The shape of `mask` must fit them. With a causal mask or a position
    encoding, T must not be larger than the number of keys."""
    width = attention.embed_dim
    fits = (
        query.dim() in (2, 3)
        and query.dim() == key.dim() == value.dim()
        and query.shape[:-2] == key.shape[:-2]
        and key.shape[:-1] == value.shape[:-1]
        and query.size(-1) == key.size(-1) == value.size(-1) == width
        and query.numel() > 0
        and key.numel() > 0
        and query.is_floating_point()
        and key.is_floating_point()
        and value.is_floating_point()
    )
    if not fits:
        parts = (query, key, value)
        shapes = ", ".join(str(tuple(part.shape)) for part in parts)
        dtypes = ", ".join(str(part.dtype) for part in parts)
        raise UserError(
            f"queries, keys and values have shapes {shapes} and dtypes {dtypes}: give non-empty "
            f"floating-point tensors (B, T, {width}), (B, S, {width}) and (B, S, {width}), or all "
            "without the batch axis B"
        )
    queries, keys = query.size(-2), key.size(-2) + (0 if past is None else past.length)
    if mask is not None:
        batch = query.size(0) if query.dim() == 3 else 1
        check_mask(mask, batch=batch, heads=attention.heads, queries=queries, keys=keys)
    if queries > keys and (attention.mask is not None or position is not None):
        raise UserError(
            f"queries ({queries}) must not outnumber keys ({keys}): queries are aligned to the "
            "last keys"
        )
