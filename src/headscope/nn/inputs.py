"""Checks tokens that come from the user."""

import operator
from collections.abc import Iterable
from typing import Any

from headscope.errors import UserError


def token_ids(tokens: Any, vocab_size: int) -> list[int]:
    """Converts a sequence of tokens to a list of integers.

    Raises UserError when `tokens` is not a sequence, or a token is not an integer in the
    vocabulary.
    """
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
