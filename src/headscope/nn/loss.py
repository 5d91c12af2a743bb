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


def chunked_loss_sum(
    x: Tensor, targets: Tensor, unembed_loss_sum: Callable[[Tensor, Tensor], Tensor], *, rows: int
) -> Tensor:
    """The summed cross-entropy in nats, computed in chunks to save memory. The final hidden states
    are x (B, T, C). The next tokens are `targets` (B, T).

    `unembed_loss_sum` takes the hidden states (N, C) and targets (N,) of one chunk, computes the
    logits, and returns the summed loss. N is at most `rows`. The backward pass recomputes the
    logits, so that only one chunk of logits is in memory at a time.
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
    """Converts the summed loss of a text, in nats, to bits per byte. `size` is the size of the text
    in bytes. If `size` is 0, the result is NaN.

    Unlike the loss per token, bits per byte can be compared across tokenizers. A high value means
    that the text is hard to predict.
    """
    return nats / math.log(2) / size if size else math.nan
