"""How much a model learns from its context (Olsson 2022).

Shapes: N windows, T tokens.
"""

import torch
from torch import Tensor

from headscope.nn import GPT
from headscope.nn.capture import evaluating
from headscope.nn.loss import next_token_loss

BATCH = 16


@torch.no_grad()
def in_context_score(model: GPT, windows: Tensor) -> float:
    """The in-context-learning score, in nats per token: the mean loss on the last tenth of the
    tokens of windows (N, T) minus the mean loss on the second tenth. Below 0, the model predicts
    better the more it has read. NaN for windows of fewer than 11 tokens.

    Olsson 2022 compares the 500th token with the 50th, in windows of 512. Tenths of a window are
    less noisy and exist in short windows too.
    """
    tenth = (windows.size(1) - 1) // 10
    if not tenth:
        return float("nan")
    losses = torch.zeros(windows.size(1) - 1)
    with evaluating(model):
        for batch in windows.to(model.device).split(BATCH):
            targets = batch[:, 1:]
            each = next_token_loss(model(batch[:, :-1]), targets, reduction="none")
            losses += each.view_as(targets).sum(dim=0).cpu() / len(windows)
    return float(losses[-tenth:].mean() - losses[tenth : 2 * tenth].mean())
