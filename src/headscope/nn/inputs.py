"""Checks of what layers are called with. They read shapes and dtypes only, so they cost no
synchronization with a GPU.

Shapes: B batch, T tokens, C width.
"""

import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from headscope.errors import UserError


def check_embeddings(x: Tensor, width: int) -> None:
    """Raises UserError when x is not floating-point numbers (B, T, width), or are empty."""
    if x.dim() != 3 or x.size(-1) != width or x.numel() == 0 or not x.is_floating_point():
        raise UserError(
            f"embeddings are {x.dtype} of shape {tuple(x.shape)}: give floating-point numbers "
            f"(B, T, {width}) with at least one token"
        )


def check_tokens(tokens: Tensor) -> None:
    """Raises UserError when tokens are not int64 or int32 (B, T), or are empty."""
    if tokens.dim() != 2 or tokens.numel() == 0 or tokens.dtype not in (torch.int64, torch.int32):
        raise UserError(
            f"tokens are {tokens.dtype} of shape {tuple(tokens.shape)}: give torch.int64 (B, T) "
            "with at least one token"
        )


def token_ids(tokens: Any, vocab_size: int) -> list[int]:
    """A sequence of tokens as plain integers. Raises UserError when it is none, or when one is no
    integer in the vocabulary."""
    if not isinstance(tokens, Iterable):
        raise UserError(f"tokens are {tokens!r}: give a sequence of integers")
    ids = []
    for number, token in enumerate(tokens):
        try:
            ids.append(operator.index(token))
        except TypeError:
            raise UserError(
                f"token {number} is {token!r}: give integers from 0 to {vocab_size - 1}"
            ) from None
        if not 0 <= ids[-1] < vocab_size:
            raise UserError(
                f"token {number} is {ids[-1]}, which is not in the vocabulary: give integers from "
                f"0 to {vocab_size - 1}"
            )
    return ids
