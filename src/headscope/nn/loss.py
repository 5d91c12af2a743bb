"""Losses of a language model.

Shapes: B batch, T tokens, C embed_dim, V vocab_size, N tokens in a chunk.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def next_token_loss(logits: Tensor, targets: Tensor, *, reduction: str = "mean") -> Tensor:
    """Cross-entropy in nats between logits (B, T, V) and the next tokens `targets` (B, T)."""
    return F.cross_entropy(
        logits.reshape(-1, logits.size(-1)).float(), targets.reshape(-1), reduction=reduction
    )


IGNORED = -100
"""The target of a token that the loss does not count."""


def only_answers(inputs: Tensor, targets: Tensor, after: int | None) -> Tensor:
    """The targets (B, T) where the input (B, T) is the token `after`, and IGNORED elsewhere. All
    targets if `after` is None."""
    return targets if after is None else targets.where(inputs == after, IGNORED)


def chunked_loss_sum(
    x: Tensor, targets: Tensor, unembed_loss_sum: Callable[[Tensor, Tensor], Tensor], *, rows: int
) -> Tensor:
    """The summed cross-entropy in nats of the next tokens `targets` (B, T), from the final hidden
    states x (B, T, C), in chunks of at most `rows` tokens.

    `unembed_loss_sum` maps the hidden states (N, C) and targets (N,) of a chunk to the summed loss.
    The backward pass recomputes the logits, so that only one chunk of logits is in memory.
    """
    chunks = math.ceil(targets.numel() / rows)
    loss_sums = [
        checkpoint(unembed_loss_sum, *chunk, use_reentrant=False)
        for chunk in zip(
            x.flatten(0, 1).chunk(chunks), targets.flatten().chunk(chunks), strict=True
        )
    ]
    return torch.stack(loss_sums).sum()


def bits_per_byte(nats: float, size: float) -> float:
    """Converts the summed loss of a text in nats to bits per byte, which can be compared across
    tokenizers. `size` is the number of bytes of the text. If it is 0, the result is NaN."""
    return nats / math.log(2) / size if size else math.nan
