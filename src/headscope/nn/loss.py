"""What a language model is measured by.

Shapes: B batch, T tokens, V vocab_size.
"""

import math

import torch.nn.functional as F
from torch import Tensor


def next_token_loss(logits: Tensor, targets: Tensor, *, reduction: str = "mean") -> Tensor:
    """Cross-entropy in nats of logits (B, T, V) at the tokens (B, T) that did follow."""
    return F.cross_entropy(
        logits.reshape(-1, logits.size(-1)).float(), targets.reshape(-1), reduction=reduction
    )


def bits_per_byte(nats: float, size: float) -> float:
    """All nats of a text over ln 2 and its size in bytes; nan for a text without bytes.

    Unlike the loss per token, it compares across tokenizers.
    """
    return nats / math.log(2) / size if size else math.nan
