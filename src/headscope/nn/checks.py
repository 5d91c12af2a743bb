"""Checks of what users give to the model and to its layers. Each check raises UserError.

Shapes: B batch, T tokens or queries, S keys, C embed_dim, H heads, K kv heads, D head_dim.
"""

import math
import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from headscope.errors import UserError


def check_counts(**counts: int | None) -> None:
    """Checks that every number is at least 1. None is accepted."""
    for name, count in counts.items():
        if count is not None and count < 1:
            raise UserError(f"{name}={count} must be at least 1")


def check_positive(**values: float | None) -> None:
    """Checks that every number is above 0 and finite. None is accepted."""
    for name, value in values.items():
        if value is not None and not 0 < value < math.inf:
            raise UserError(f"{name}={value} must be above 0 and finite")


def check_length(tokens: int, block_size: int) -> None:
    """Checks that the number of tokens is at most `block_size`."""
    if tokens > block_size:
        raise UserError(f"{tokens} tokens are more than block_size={block_size}")


def check_pairs(queries: int, keys: int) -> None:
    """Checks that queries can be aligned to the last keys."""
    if not 1 <= queries <= keys:
        raise UserError(
            f"queries ({queries}) must not outnumber keys ({keys}), and must be at least 1: "
            "queries are aligned to the last keys"
        )


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
            raise UserError(
                f"token {number} is {token!r}, which is not in the vocabulary: give integers from "
                f"0 to {vocab_size - 1}"
            )
    return ids


def check_tokens(tokens: Tensor, block_size: int) -> None:
    """Checks that `tokens` are non-empty integers (B, T), and that T is at most `block_size`."""
    integers = tokens.dtype in (torch.int64, torch.int32)
    if tokens.dim() != 2 or tokens.numel() == 0 or not integers:
        raise UserError(
            f"tokens are {tokens.dtype} of shape {tuple(tokens.shape)}: give torch.int64 "
            "(B, T) with at least one token"
        )
    check_length(tokens.size(1), block_size)


def check_floats(name: str, x: Tensor, *axes: str | int) -> None:
    """Checks that x is a non-empty floating-point tensor with these axes, the last of this size."""
    fits = x.dim() == len(axes) and x.size(-1) == axes[-1] and x.numel() > 0
    if not fits or not x.is_floating_point():
        raise UserError(
            f"{name} are {x.dtype} of shape {tuple(x.shape)}: give a non-empty floating-point "
            f"tensor ({', '.join(map(str, axes))})"
        )


# --- attention layers ---


def resolve_head_dim(*, embed_dim: int, heads: int, head_dim: int | None) -> int:
    """Returns `head_dim` or, if it is None, `embed_dim` / `heads`. Checks all three."""
    check_counts(embed_dim=embed_dim, heads=heads, head_dim=head_dim)
    if head_dim is not None:
        return head_dim
    if embed_dim % heads:
        raise UserError(
            f"embed_dim={embed_dim} must be a multiple of heads={heads}, because every head gets "
            "an equal part of it: change one of them, or set head_dim"
        )
    return embed_dim // heads


def check_kv_heads(name: str, *, kv_heads: int | None, heads: int, only: int) -> None:
    """Checks that `kv_heads` is None or `only`, its value in the attention `name`."""
    if kv_heads not in (None, only):
        raise UserError(
            f"kv_heads={kv_heads}: in {name} with heads={heads} it must be {only}; remove it, or "
            "set model/attention=grouped_query, where query heads share keys"
        )


def check_sizes(layer: Any, *, block_size: int | None, causal: bool) -> None:
    """Checks that the sizes of `layer`, a `MultiHeadAttention`, fit together."""
    check_counts(block_size=block_size, out_dim=layer.out_dim)
    check_positive(scale=layer.scale)
    if not 0 <= layer.dropout < 1:
        raise UserError(f"dropout={layer.dropout} must be at least 0 and below 1")
    heads, kv_heads = layer.heads, layer.kv_heads
    if kv_heads < 1 or heads % kv_heads:
        raise UserError(
            f"heads={heads} must be a multiple of kv_heads={kv_heads}: every key head serves the "
            "same number of query heads"
        )
    if not layer.has_out_proj and heads * layer.head_dim != layer.out_dim:
        raise UserError(
            f"out_proj=false needs heads={heads} times head_dim={layer.head_dim} equal to the "
            f"output width {layer.out_dim}"
        )
    if causal and block_size is None:
        raise UserError("causal attention needs block_size, the maximum sequence length")


def check_inputs(
    layer: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None,
    position: Any,
    past: Any,
) -> None:
    """Checks the arguments of `layer`, a `MultiHeadAttention`: the query (B, T, C), the key
    (B, S, C) and the value (B, S, C), all with or without the batch axis, and the mask. With a
    causal mask or a position encoding, T must not be larger than the number of keys."""
    parts, width = (query, key, value), layer.embed_dim
    fits = query.dim() in (2, 3) and query.size(-1) == width and query.numel() > 0
    fits = fits and query.is_floating_point()
    if key is not query or value is not query:  # each call takes time when one token is sampled
        fits = (
            fits
            and query.dim() == key.dim() == value.dim()
            and query.shape[:-2] == key.shape[:-2]
            and key.shape[:-1] == value.shape[:-1]
            and key.size(-1) == value.size(-1) == width
            and key.numel() > 0
            and key.is_floating_point()
            and value.is_floating_point()
        )
    if not fits:
        shapes = ", ".join(str(tuple(x.shape)) for x in parts)
        dtypes = ", ".join(str(x.dtype) for x in parts)
        raise UserError(
            f"queries, keys and values have shapes {shapes} and dtypes {dtypes}: give non-empty "
            f"floating-point tensors (B, T, {width}), (B, S, {width}) and (B, S, {width}), or all "
            "without the batch axis B"
        )
    queries, keys = query.size(-2), key.size(-2) + (0 if past is None else past.length)
    if mask is not None:
        batch = query.size(0) if query.dim() == 3 else 1
        check_mask(mask, batch=batch, heads=layer.heads, queries=queries, keys=keys)
    causal = layer.mask  # read once, because a buffer is slow to read
    if causal is not None:
        check_length(keys, causal.size(0))
    if causal is not None or position is not None:
        check_pairs(queries, keys)


def check_mask(mask: Tensor, *, batch: int, heads: int, queries: int, keys: int) -> None:
    """Checks that `mask` is boolean, and that its shape fits the other arguments."""
    if mask.dtype != torch.bool:
        raise UserError(f"the mask is {mask.dtype}: give torch.bool, True where a query may look")
    shape = tuple(mask.shape)
    fits = shape == (queries, keys) or (
        mask.dim() == 4
        and shape[0] in (1, batch)
        and shape[1] in (1, heads)
        and shape[2] in (1, queries)
        and shape[3] == keys
    )
    if not fits:
        raise UserError(
            f"the mask has shape {shape}: it must be (queries, keys) = {(queries, keys)} or "
            f"(batch, heads, queries, keys) = {(batch, heads, queries, keys)}, where 1 broadcasts. "
            "If it has one axis less, use mask_per_sequence(mask) or mask[None]"
        )


NOT_FINITE = (
    "the logits of the model are not finite, because its weights are too large: use an earlier "
    "checkpoint"
)


def check_finite(values: Tensor) -> None:
    """Raises UserError if one of the logits, or of the losses, is NaN or infinite."""
    if not values.isfinite().all():
        raise UserError(NOT_FINITE)


def check_equation(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> None:
    """Checks the arguments of `scaled_dot_product`."""
    try:
        axes = torch.broadcast_shapes(*(x.shape[:-2] for x in (q, k, v)))
        fits = q.size(-1) == k.size(-1) and k.size(-2) == v.size(-2)
        fits = fits and all(x.numel() and x.is_floating_point() for x in (q, k, v))
        if mask is not None:
            fits = fits and mask.dtype == torch.bool
            mask.expand(*axes, q.size(-2), k.size(-2))
    except (RuntimeError, IndexError):
        fits = False
    if not fits:
        given = {"q": q, "k": k, "v": v} | ({} if mask is None else {"mask": mask})
        shown = ", ".join(f"{name} is {x.dtype} {tuple(x.shape)}" for name, x in given.items())
        raise UserError(
            f"{shown}: give non-empty floating-point tensors q (..., T, D), k (..., S, D) and "
            "v (..., S, E), whose axes before the last two are equal or 1, and a mask of "
            "torch.bool that broadcasts to (..., T, S)"
        )
