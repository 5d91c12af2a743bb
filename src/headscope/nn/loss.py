"""Losses of a language model.

Shapes: B batch, T tokens, C embed_dim, V vocab_size, N tokens in a chunk.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from headscope.errors import UserError

NOT_FINITE = (
    "the logits of the model are not finite, because its weights are too large: use an earlier "
    "checkpoint"
)


def check_finite(values: Tensor) -> None:
    """Raises UserError if one of the logits, or of the losses, is NaN or infinite."""
    if not values.isfinite().all():
        raise UserError(NOT_FINITE)


def next_token_loss(logits: Tensor, targets: Tensor, *, reduction: str = "mean") -> Tensor:
    """Cross-entropy in nats between logits (B, T, V) and the next tokens `targets` (B, T)."""
    return F.cross_entropy(
        logits.reshape(-1, logits.size(-1)).float(), targets.reshape(-1), reduction=reduction
    )


IGNORED = -100
"""The target of a token that the loss does not count."""


@dataclass(frozen=True)
class Answers:
    """A loss that counts only tokens after the token `after`. `begin` begins a document."""

    after: int
    begin: int


def counted_targets(
    inputs: Tensor, targets: Tensor, answers: Answers | None, *, begun: bool = False
) -> Tensor:
    """The targets (B, T) that a loss counts, and IGNORED elsewhere. Without `answers`, all count.

    An answer counts only if its document begins in the inputs (B, T): in a window that begins
    within a document, the model does not see the question. If `begun`, the inputs begin with a
    document, without its first token `begin`.
    """
    if answers is None:
        return targets
    seen = (inputs == answers.begin).cumsum(dim=-1) > 0
    return targets.where((inputs == answers.after) & (seen | begun), IGNORED)


def chunked_loss_sum(
    x: Tensor, targets: Tensor, unembed_loss_sum: Callable[[Tensor, Tensor], Tensor], *, rows: int
) -> Tensor:
    """The summed cross-entropy in nats of the next tokens `targets` (B, T), from the final hidden
    states x (B, T, C), in chunks of at most `rows` tokens.

    `unembed_loss_sum` maps the hidden states (N, C) and targets (N,) of a chunk to the summed loss.
    The backward pass recomputes the logits, so that only one chunk of logits is in memory.
    """
    chunks = math.ceil(targets.numel() / rows)
    pairs = zip(x.flatten(0, 1).chunk(chunks), targets.flatten().chunk(chunks), strict=True)
    loss_sums = [checkpoint(unembed_loss_sum, *pair, use_reentrant=False) for pair in pairs]
    return torch.stack(loss_sums).sum()


def bits_per_byte(nats: float, size: float) -> float:
    """Converts the summed loss of a text in nats to bits per byte, which can be compared across
    tokenizers. `size` is the number of bytes of the text. If it is 0, the result is NaN."""
    return nats / math.log(2) / size if size else math.nan
