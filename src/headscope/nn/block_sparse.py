"""Block-sparse dot-product attention, which skips blocks of hidden keys in compiled code on a GPU.

Shapes: B batch, T queries, S keys, H heads, K kv heads (divides H), D head_dim.

With a mask, `scaled_dot_product_attention` computes the scores of all T x S pairs of a query and a
key, even if the mask hides most pairs. PyTorch's `flex_attention` (Dong 2024) skips blocks in which
all pairs are hidden. It does so only in compiled code: without compilation, it computes all scores.
"""

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

BLOCK = 128
"""Number of queries and of keys in a block, the default of `flex_attention`."""

MIN_HEAD_DIM = 16
"""Smallest D that the kernels of `flex_attention` support."""


def can_skip_blocks(q: Tensor, mask: Tensor, *, dropout: float) -> bool:
    """Whether `attend_skipping_blocks` supports these arguments and has blocks to skip. `mask` must
    have shape (B, 1, T, S): one mask per sequence, as from `mask_from_documents`."""
    return (
        q.is_cuda
        and torch.compiler.is_compiling()
        and mask.dim() == 4
        and mask.shape[:3] == (q.size(0), 1, q.size(2))
        and q.size(2) > BLOCK
        and q.size(3) >= MIN_HEAD_DIM
        and not dropout
    )


def attend_skipping_blocks(
    q: Tensor, k: Tensor, v: Tensor, causal: Tensor | None, mask: Tensor, *, scale: float
) -> Tensor:
    """Computes softmax(scale q k^T) v, (B, H, T, D), where both `causal` (T, S) and `mask`
    (B, 1, T, S) are True. If a query may look at no key, its output is zero."""
    visible = mask if causal is None else causal & mask

    def may_look(text: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return visible[text, 0, query, key]

    blocks = create_block_mask(may_look, q.size(0), None, q.size(2), k.size(2), device=q.device)
    grouped = k.size(1) < q.size(1)
    return flex_attention(q, k, v, block_mask=blocks, scale=scale, enable_gqa=grouped)
