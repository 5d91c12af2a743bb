"""How much a model learns from its context (Olsson 2022).

Shapes: N windows, T tokens.
"""

import torch
from torch import Tensor

from headscope.nn import GPT
from headscope.nn.capture import evaluating
from headscope.nn.loss import IGNORED, Answers, counted_targets, next_token_loss

BATCH = 16


@torch.no_grad()
def in_context_score(model: GPT, windows: Tensor, answers: Answers | None = None) -> float:
    """The in-context-learning score, in nats per token: the mean loss on the last tenth of the
    tokens of windows (N, T) minus the mean loss on the second tenth. Below 0, the model predicts
    late tokens better than early ones. With `answers`, only they count. NaN for windows of fewer
    than 11 tokens, or if a tenth has no token that counts.

    Olsson 2022 compares the 500th token with the 50th, in windows of 512. Tenths of a window are
    less noisy and exist in short windows too.
    """
    length = windows.size(1) - 1
    losses, counted, size = torch.zeros(length), torch.zeros(length), length // 10
    if not size:
        return torch.nan
    with evaluating(model):
        for batch in windows.to(model.device).split(BATCH):
            inputs = batch[:, :-1]
            targets = counted_targets(inputs, batch[:, 1:], answers)
            of_tokens = next_token_loss(model(inputs), targets, reduction="none").view_as(targets)
            losses += of_tokens.sum(dim=0).cpu() / len(windows)
            counted += (targets != IGNORED).sum(dim=0).cpu()
    last, second = slice(length - size, None), slice(size, 2 * size)
    shares = counted / len(windows)
    late, early = (losses[tenth].mean() / shares[tenth].mean() for tenth in (last, second))
    return float(late - early)
