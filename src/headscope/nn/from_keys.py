"""Builds a GPT from the keys of conf/model."""

from collections.abc import Callable
from functools import partial
from typing import Any

from headscope.nn.attention import MultiHeadAttention
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
    """A GPT with untrained weights. The arguments have the names of the keys in conf/model. Some of
    these keys are options of the model's parts. `options` are arguments of `GPT`.

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
