"""Named variants of `MultiHeadAttention`. Each variant checks that `heads` and `kv_heads` fit its
name."""

from typing import Any

from headscope.errors import UserError
from headscope.nn.attention.multi_head import MultiHeadAttention


def single_head(*, heads: int, **options: Any) -> MultiHeadAttention:
    """Attention with a single head. By default, the width of the head is `embed_dim`.

    Raises UserError when `heads` is not 1.
    """
    if heads != 1:
        raise UserError(
            f"heads={heads}: single_head has one head; set model.heads=1, or "
            "model/attention=multi_head"
        )
    return multi_head(heads=heads, **options)


def multi_head(*, heads: int, kv_heads: int | None = None, **options: Any) -> MultiHeadAttention:
    """Attention with one key head per query head. Raises UserError when `kv_heads` is not
    `heads`."""
    if kv_heads not in (None, heads):
        raise UserError(
            f"kv_heads={kv_heads}: in multi_head it must equal heads={heads}; remove it, or set "
            "model/attention=grouped_query, where query heads share keys"
        )
    return MultiHeadAttention(heads=heads, **options)


def multi_query(*, kv_heads: int | None = None, **options: Any) -> MultiHeadAttention:
    """Attention with one key head for all query heads. Raises UserError when `kv_heads` is not
    1."""
    if kv_heads not in (None, 1):
        raise UserError(
            f"kv_heads={kv_heads}: multi_query has one key head; remove it, or set "
            "model/attention=grouped_query"
        )
    return MultiHeadAttention(kv_heads=1, **options)


def grouped_query(*, kv_heads: int | None = None, **options: Any) -> MultiHeadAttention:
    """Attention with `kv_heads` key/value heads, each shared by a group of query heads. Raises
    UserError when `kv_heads` is None."""
    if kv_heads is None:
        raise UserError("grouped_query needs kv_heads: give a number that divides heads")
    return MultiHeadAttention(kv_heads=kv_heads, **options)
