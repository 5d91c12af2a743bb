"""Boolean attention masks: True where a query may look at a key.

Shapes: B batch, T queries, S keys, H heads.

A mask has shape (T, S) or (B, H, T, S). In a mask with four axes, B, H and T may each be 1, and are
then broadcast. A mask with three axes is rejected, because it could mean (B, T, S) or (H, T, S).
The functions below create masks of the right shape. Those that take a mask from the user raise
UserError if it has other axes, or contains floating-point numbers.
"""

import torch
from torch import Tensor

from headscope.errors import UserError


def mask_from_padding(real: Tensor) -> Tensor:
    """The mask (B, 1, 1, S) that hides padding. `real` (B, S) is True or 1 for real tokens, and
    False or 0 for padding. Raises UserError if it has other axes, or is a tensor of floats."""
    if real.dim() != 2:
        raise UserError(f"padding has shape {tuple(real.shape)}: it must be (batch, keys)")
    return to_boolean(real)[:, None, None, :]


def mask_per_sequence(mask: Tensor) -> Tensor:
    """The mask (B, 1, T, S) that gives each sequence its own `mask` (B, T, S). Raises UserError if
    `mask` has other axes, or is a tensor of floats."""
    if mask.dim() != 3:
        raise UserError(f"the mask has shape {tuple(mask.shape)}: give (batch, queries, keys)")
    return to_boolean(mask)[:, None]


def mask_from_documents(documents: Tensor, start: int = 0) -> Tensor:
    """The mask (B, 1, T, S) that keeps attention within a document: True where query and key are in
    the same document. `documents` (B, S) has the number of each token's document. All S tokens are
    keys. The tokens from `start` on are queries, so T = S - start."""
    return (documents[:, start:, None] == documents[:, None])[:, None]


def to_boolean(mask: Tensor) -> Tensor:
    """Converts integers 0 and 1 to a boolean mask."""
    if mask.is_floating_point():  # in an additive mask, 0 would mean "may look"
        raise UserError(f"the mask is {mask.dtype}: it must be boolean, or integers 0 and 1")
    return mask.bool()


def combine_masks(causal: Tensor | None, mask: Tensor | None) -> Tensor | None:
    """The mask that is True where both masks are True. A mask that is None hides nothing."""
    if causal is None or mask is None:
        return mask if causal is None else causal
    return causal & mask


def check_mask(mask: Tensor, *, batch: int, heads: int, queries: int, keys: int) -> None:
    """Checks that `mask` is boolean, and that its shape agrees with the other arguments."""
    if mask.dtype != torch.bool:
        raise UserError(f"the mask is {mask.dtype}: give torch.bool, True where a query may look")
    shape = tuple(mask.shape)
    agrees = shape == (queries, keys) or (
        mask.dim() == 4
        and shape[0] in (1, batch)
        and shape[1] in (1, heads)
        and shape[2] in (1, queries)
        and shape[3] == keys
    )
    if not agrees:
        raise UserError(
            f"the mask has shape {shape}: it must be (queries, keys) = {(queries, keys)} or "
            f"(batch, heads, queries, keys) = {(batch, heads, queries, keys)}, where 1 broadcasts. "
            "If it has one axis less, use mask_per_sequence(mask) or mask[None]"
        )
