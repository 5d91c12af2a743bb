"""Boolean masks: True where a query may look at a key.

Shapes: B batch, T queries, S keys, H heads.

A mask is (T, S), the same for all, or (B, H, T, S), where each of the first three may be 1 for all
alike. Three axes are refused, since both (B, T, S) and (H, T, S) are meant by them elsewhere:
`mask_from_padding` and `mask_per_sequence` make the right shape.
"""

import torch
from torch import Tensor

from headscope.errors import UserError


def mask_from_padding(real: Tensor) -> Tensor:
    """The mask (B, 1, 1, S) that hides padding; `real` (B, S) is True, or 1, at real tokens.

    Raises UserError when `real` has other axes, or floating-point numbers.
    """
    if real.dim() != 2:
        raise UserError(f"padding of shape {tuple(real.shape)} must be (batch, keys)")
    return _boolean(real)[:, None, None, :]


def mask_per_sequence(mask: Tensor) -> Tensor:
    """The mask (B, 1, T, S) in which every sequence has its own (T, S), the same for all heads.

    Raises UserError when `mask` is not (B, T, S), or of floating-point numbers.
    """
    if mask.dim() != 3:
        raise UserError(f"a mask of shape {tuple(mask.shape)} must be (batch, queries, keys)")
    return _boolean(mask)[:, None]


def _boolean(mask: Tensor) -> Tensor:
    if mask.is_floating_point():  # 0 and -inf would mean the contrary of 0 and 1
        raise UserError(f"a mask of {mask.dtype} must be boolean, or of whole numbers 0 and 1")
    return mask.bool()


def check_mask(mask: Tensor, *, batch: int, heads: int, queries: int, keys: int) -> None:
    """Raises UserError when `mask` is not boolean, or of no shape that says what it means."""
    if mask.dtype != torch.bool:
        raise UserError(f"a mask of {mask.dtype} must be torch.bool, True where a query may look")
    shape = tuple(mask.shape)
    if mask.dim() == 3:
        raise UserError(
            f"a mask of shape {shape} could be (batch, queries, keys) or (heads, queries, keys): "
            "give it four axes, by mask_per_sequence(mask) or mask[None]"
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
            f"a mask of shape {shape} must be (queries, keys) = {(queries, keys)} or (batch, 1 or "
            f"heads, queries, keys) = {(batch, heads, queries, keys)}"
        )


def combine(causal: Tensor | None, mask: Tensor | None) -> Tensor | None:
    """Where both allow it; None allows everything."""
    if causal is None or mask is None:
        return mask if causal is None else causal
    return causal & mask
