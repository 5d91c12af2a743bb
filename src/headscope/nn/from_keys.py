"""Builds a GPT and its attention from the keys of conf/model."""

from collections.abc import Callable
from functools import partial
from typing import Any

from headscope.errors import UserError
from headscope.nn.attention import MultiHeadAttention
from headscope.nn.checks import check_kv_heads
from headscope.nn.gpt import GPT


def gpt_from_keys(
    *,
    vocab_size: int,
    heads: int,
    kv_heads: int | None,
    head_dim: int | None,
    ff_dim: int | None,
    bias: bool,
    qkv_bias: bool,
    document_mask: bool,
    attention: Callable[..., MultiHeadAttention],
    norm: Callable[..., Any],
    feed_forward: Callable[..., Any],
    activation: Callable[..., Any],
    end_of_text: int | None = None,
    **options: Any,
) -> GPT:
    """A GPT with untrained weights. The arguments are the keys in conf/model. Some of them are
    options of the model's parts. `options` are arguments of `GPT`.

    With `document_mask`, the token `end_of_text` begins a new document. It is the last token of the
    vocabulary if no other is given. Raises UserError when sizes do not fit together.
    """
    if end_of_text is None:
        end_of_text = vocab_size - 1
    widths = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
    return GPT(
        vocab_size=vocab_size,
        attention=partial(attention, **widths, qkv_bias=qkv_bias, out_bias=bias),
        norm=partial(norm, bias=bias),
        feed_forward=partial(feed_forward, ff_dim=ff_dim, activation=activation, bias=bias),
        end_of_text=end_of_text if document_mask else None,
        **options,
    )


# --- the choices of model/attention that are one class; each checks heads and kv_heads ---


def single_head(*, heads: int, **options: Any) -> MultiHeadAttention:
    """Attention with a single head, by default as wide as `embed_dim`."""
    if heads != 1:
        raise UserError(
            f"heads={heads}: single_head has one head; set model.heads=1, or "
            "model/attention=multi_head"
        )
    return multi_head(heads=heads, **options)


def multi_head(*, heads: int, kv_heads: int | None = None, **options: Any) -> MultiHeadAttention:
    """Attention with one key head per query head."""
    check_kv_heads("multi_head", kv_heads=kv_heads, heads=heads, only=heads)
    return MultiHeadAttention(heads=heads, **options)


def multi_query(*, heads: int, kv_heads: int | None = None, **options: Any) -> MultiHeadAttention:
    """Attention with one key head for all query heads."""
    check_kv_heads("multi_query", kv_heads=kv_heads, heads=heads, only=1)
    return MultiHeadAttention(heads=heads, kv_heads=1, **options)


def grouped_query(*, kv_heads: int | None = None, **options: Any) -> MultiHeadAttention:
    """Attention with `kv_heads` key/value heads, each shared by a group of query heads."""
    if kv_heads is None:
        raise UserError("grouped_query needs kv_heads: give a number that divides heads")
    return MultiHeadAttention(kv_heads=kv_heads, **options)
