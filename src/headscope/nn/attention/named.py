"""The variants of `MultiHeadAttention` by name, each held to the heads that its name promises."""

from typing import Any

from headscope.errors import UserError
from headscope.nn.attention.multi_head import MultiHeadAttention


def single_head(*, heads: int, **options: Any) -> MultiHeadAttention:
    """One head, as wide as the embedding unless `head_dim` is given.

    Raises UserError when `heads` is not 1.
    """
    if heads != 1:
        raise UserError(
            f"heads={heads}: single_head has one: model.heads=1, or model/attention=multi_head"
        )
    return multi_head(heads=heads, **options)


def multi_head(*, heads: int, kv_heads: int | None = None, **options: Any) -> MultiHeadAttention:
    """A key head for every query head. Raises UserError when `kv_heads` says otherwise."""
    if kv_heads not in (None, heads):
        raise UserError(
            f"kv_heads={kv_heads}: here every one of heads={heads} has keys of its own; "
            "model/attention=grouped_query shares them"
        )
    return MultiHeadAttention(heads=heads, **options)


def multi_query(*, kv_heads: int | None = None, **options: Any) -> MultiHeadAttention:
    """One key head for all query heads. Raises UserError when `kv_heads` is not 1."""
    if kv_heads not in (None, 1):
        raise UserError(
            f"kv_heads={kv_heads}: multi_query has one; model/attention=grouped_query takes more"
        )
    return MultiHeadAttention(kv_heads=1, **options)


def grouped_query(*, kv_heads: int | None = None, **options: Any) -> MultiHeadAttention:
    """`kv_heads` key heads, each for a group of query heads. Raises UserError without them."""
    if kv_heads is None:
        raise UserError("grouped_query needs kv_heads=: give a number that divides heads")
    return MultiHeadAttention(kv_heads=kv_heads, **options)
