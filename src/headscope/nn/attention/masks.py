"""Boolean attention masks: True where a query may look at a key.

Shapes: B batch, T queries, S keys, H heads.

A mask has shape (T, S) or (B, H, T, S). In a mask with four axes, B, H and T may each be 1, and are
then broadcast. A mask with three axes is rejected, because it could mean (B, T, S) or (H, T, S).
`mask_from_padding`, `mask_per_sequence` and `mask_from_documents` create masks of the right shape.
"""

import torch
from torch import Tensor

from headscope.errors import UserError


def mask_from_padding(real: Tensor) -> Tensor:
    """The mask (B, 1, 1, S) that hides padding. `real` (B, S) is True or 1 for real tokens, and
    False or 0 for padding.

    Raises UserError when `real` does not have two axes, or when it contains floating-point numbers.
    """
    if real.dim() != 2:
        raise UserError(f"padding has shape {tuple(real.shape)}: it must be (batch, keys)")
    return _boolean(real)[:, None, None, :]


def mask_per_sequence(mask: Tensor) -> Tensor:
    """The mask (B, 1, T, S) that gives each sequence its own mask. `mask` (B, T, S) contains one
    mask per sequence. All heads share this mask.

    Raises UserError when `mask` does not have three axes, or when it contains floating-point
    numbers.
    """
    if mask.dim() != 3:
        raise UserError(
            f"the mask has shape {tuple(mask.shape)}: it must be (batch, queries, keys)"
        )
    return _boolean(mask)[:, None]


def mask_from_documents(documents: Tensor, start: int = 0) -> Tensor:
    """The mask (B, 1, T, S) that keeps attention within a document: True where query and key are in
    the same document. `documents` (B, S) has the number of each token's document. All S tokens are
    keys. The tokens from `start` on are queries, so T = S - start."""
    return (documents[:, start:, None] == documents[:, None])[:, None]


def _boolean(mask: Tensor) -> Tensor:
    if mask.is_floating_point():  # in an additive mask, 0 would mean "may look"
        raise UserError(f"the mask is {mask.dtype}: it must be boolean, or integers 0 and 1")
    return mask.bool()


def check_mask(mask: Tensor, *, batch: int, heads: int, queries: int, keys: int) -> None:
    """Raises UserError when `mask` is not boolean, or when its shape does not fit the other
    arguments."""
    if mask.dtype != torch.bool:
        raise UserError(
            f"the mask is {mask.dtype}: it must be torch.bool, True where a query may look"
        )
    shape = tuple(mask.shape)
    if mask.dim() == 3:
        raise UserError(
            f"the mask has shape {shape}, which could mean (batch, queries, keys) or (heads, "
            "queries, keys): give it four axes, with mask_per_sequence(mask) or mask[None]"
        )
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
            f"(batch, heads, queries, keys) = {(batch, heads, queries, keys)}, where 1 broadcasts"
        )


def combine_masks(causal: Tensor | None, mask: Tensor | None) -> Tensor | None:
    """Combine two masks: the result is True where both masks are True. A mask that is None hides
    nothing."""
    if causal is None or mask is None:
        return mask if causal is None else causal
    return causal & mask
