"""Estimates from gradients how much a model needs each head, without removing any head.

Shapes: L layers, H heads, D head_dim, N texts, T tokens.

For the output A_h of a head h at one token (D numbers) and the loss L of the text, the product
A_h^T dL/dA_h is the derivative of the loss with respect to a factor that multiplies A_h. Michel
2019 (equation 2) calls its expected absolute value the importance of the head. With the opposite
sign, it is the first-order Taylor estimate of the change of the loss when A_h becomes zero.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from headscope.analysis.ablation import Replacement, counted_per_text, mean_outputs, text_losses
from headscope.analysis.head_outputs import largest_batch
from headscope.nn import GPT
from headscope.nn.capture import capture, evaluating


def gradient_importance(
    model: GPT,
    inputs: Tensor,
    targets: Tensor,
    *,
    replace_by: Replacement = "zero",
    max_batch: int | None = None,
    track: Callable[[Iterable[Tensor]], Iterable[Tensor]] = iter,
) -> dict[str, Tensor]:
    """Estimate how much the loss on inputs (N, T) depends on each head. `targets` (N, T) are the
    tokens to predict, or IGNORED where they do not count. This takes one forward and one backward
    pass, while `ablate_heads` needs a forward pass per head.

    Returns a dictionary:

    - `loss` (): the mean loss, in nats per counted token.
    - `importance` (L, H): |A_h^T dL/dA_h|, summed over the tokens of a text, and averaged over the
      texts. L is the loss of the text, as in `text_losses`. As in the code of Michel 2019, the
      absolute value is taken for each token, so tokens with opposite signs do not cancel out.
    - `nats_per_token` (L, H): the first-order estimate of the loss without the head minus the loss
      with it. It is the sum of (R_h - A_h)^T dL/dA_h over the tokens of a text, averaged over the
      texts, where R_h is what replaces the output of the head: zero or, if `replace_by` is mean,
      its mean output. A positive value means that the head lowers the loss.

    A batch contains at most `max_batch` texts. `track` wraps the iterable of batches.
    """
    limit = largest_batch(model, inputs.size(1)) if max_batch is None else max_batch
    loss, importance, change = 0.0, torch.zeros(()), torch.zeros(())
    per_text = counted_per_text(targets).mean()
    with evaluating(model):
        means = mean_outputs(model, inputs, limit) if replace_by == "mean" else None
        for batch in track(torch.arange(len(inputs)).split(limit)):
            losses, outputs, gradients = _output_gradients(
                model, inputs[batch].to(model.device), targets[batch].to(model.device), per_text
            )
            loss += float(losses.sum())
            for_zero = torch.stack(
                [(a * g).sum(dim=-1) for a, g in zip(outputs, gradients, strict=True)]
            )  # (L, N, T, H)
            importance = importance + for_zero.abs().sum(dim=(1, 2)).cpu()
            change = change - for_zero.sum(dim=(1, 2)).cpu()
            if means is not None:
                sums = [(r * g).sum(dim=(0, 1, 3)) for r, g in zip(means, gradients, strict=True)]
                change = change + torch.stack(sums).cpu()
    count = len(inputs)
    return {
        "loss": torch.tensor(loss / count),
        "importance": importance / count,
        "nats_per_token": change / count,
    }


def _output_gradients(
    model: GPT, inputs: Tensor, targets: Tensor, per_text: Tensor
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """The `text_losses` (N,) and, for each layer, the outputs of the heads (N, T, H, D)
    and the gradients of each text's loss with respect to them."""
    with torch.enable_grad():
        found = capture(model, inputs, gradients=True)
        losses = text_losses(model, found.residual[-1], targets, per_text)
        # Each text affects only its own loss.
        gradients = torch.autograd.grad(losses.sum(), found.outputs)
    return losses.detach(), [each.detach() for each in found.outputs], list(gradients)
