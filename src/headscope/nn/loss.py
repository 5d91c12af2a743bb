"""What a language model is measured by.

Shapes: B batch, T tokens, C embed_dim, V vocab_size, N tokens of a chunk.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def next_token_loss(logits: Tensor, targets: Tensor, *, reduction: str = "mean") -> Tensor:
    """Cross-entropy in nats of logits (B, T, V) at the tokens (B, T) that did follow."""
    return F.cross_entropy(
        logits.reshape(-1, logits.size(-1)).float(), targets.reshape(-1), reduction=reduction
    )


def chunked_loss_sum(
    x: Tensor, targets: Tensor, unembed_loss_sum: Callable[[Tensor, Tensor], Tensor], *, rows: int
) -> Tensor:
    """All nats of what the last block wrote, x (B, T, C), at the tokens (B, T) that did follow,
    without all logits being there at once.

    `unembed_loss_sum` computes the logits of a chunk x (N, C) and sums the loss at its tokens (N,),
    at most `rows` of them. The backward pass recomputes them, so that only one chunk is held.
    """
    chunks = math.ceil(targets.numel() / rows)
    nats = [
        checkpoint(unembed_loss_sum, *chunk, use_reentrant=False)
        for chunk in zip(
            x.flatten(0, 1).chunk(chunks), targets.flatten().chunk(chunks), strict=True
        )
    ]
    return torch.stack(nats).sum()


def bits_per_byte(nats: float, size: float) -> float:
    """All nats of a text over ln 2 and its size in bytes; nan for a text without bytes.

    Unlike the loss per token, it compares across tokenizers.
    """
    return nats / math.log(2) / size if size else math.nan
