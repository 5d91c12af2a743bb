"""Ablation: measures what changes when one head is removed, or estimates it from gradients. The
loss shows how much the model needs the head (Michel 2019). The induction of the other heads shows
whether they need it. The probability of a token shows which heads and networks decide it.

Shapes: L layers, H heads, D head_dim, N texts, T tokens, C embed_dim, P parts of the model.

For the output A_h of a head h at one token (D numbers) and the loss L of the text, the product
A_h^T dL/dA_h is the derivative of the loss with respect to a factor that multiplies A_h. Michel
2019 (equation 2) calls its expected absolute value the importance of the head. With the opposite
sign, it is the first-order Taylor estimate of the change of the loss when A_h becomes zero.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

import torch
from torch import Tensor

from headscope.analysis.head_outputs import (
    Head,
    head_outputs,
    largest_batch,
    measure_replacements,
    replaced_heads,
)
from headscope.analysis.repeats import RepeatProbe
from headscope.nn import GPT
from headscope.nn.capture import ForwardPass, capture, changed_outputs, evaluating
from headscope.nn.loss import IGNORED, next_token_loss

By = Literal["mean", "zero"]
"""What replaces the output of a part that is switched off: its mean over the text, or zero."""

Decider = dict[str, Any]
"""A part of the model, and the probability of a token with and without it: `part`, such as L0H1 or
"L0 feed-forward", `probability` and `without`. A reading adds the label of the `token`. *Deciders*
is our word for what papers call the total effects of parts, by mean or zero ablation (Vig 2020)."""

ROWS = 1024
"""Number of tokens that are computed at once without a part."""
TEXTS = 16
"""Number of repeated random texts: fewer than in a report, as they are measured once per head."""


@contextmanager
def ablated_heads(
    model: GPT, heads: Iterable[Head], means: Sequence[Tensor] | None = None
) -> Iterator[None]:
    """Inside this `with` block, the outputs of `heads` are zero or, if `means` has the mean outputs
    (H, D) of each layer, their mean. All functions that call the model see this, except a step of
    sampling that was compiled before."""
    with ExitStack() as stack:
        for layer, head in heads:
            new = torch.zeros(1) if means is None else means[layer][head]
            stack.enter_context(replaced_heads(model.attentions[layer], head, new))
        yield


@contextmanager
def halved_heads(model: GPT, heads: Iterable[Head]) -> Iterator[None]:
    """Inside this `with` block, the outputs of `heads` are multiplied by 0.5."""
    with ExitStack() as stack:
        for layer, head in heads:
            factors = model.embedding.weight.new_ones(model.attentions[layer].heads, 1)
            factors[head] = 0.5
            stack.enter_context(changed_outputs(model.attentions[layer], factors.mul))
        yield


@torch.no_grad()
def ablate_heads(
    model: GPT, inputs: Tensor, targets: Tensor, *, means: Sequence[Tensor] | None = None
) -> dict[str, Tensor]:
    """Measure how much the loss on inputs (N, T) changes when one head is removed. `targets` (N, T)
    are the tokens to predict, or IGNORED where they do not count. To remove a head, its output is
    replaced by zero or, if given, by `means` (H, D) of its layer (see `mean_outputs`).

    Returns a dictionary:

    - `loss` (): the mean loss with all heads, in nats per counted token.
    - `loss_change` (L, H): the loss without each head minus the loss with all heads, in nats per
      token. A positive value means that the head lowers the loss.
    - `loss_change_error` (L, H): its standard error over the N texts. NaN for a single text.

    For every head that is removed, each text is copied.
    """
    heads, counted = model.attentions[0].heads, counted_per_text(targets)
    zeros = [model.embedding.weight.new_zeros(heads, 1)] * len(model.attentions)
    new = [mean[None] for mean in means or zeros]  # (1, H, D) or (1, H, 1), the same at all tokens

    def losses_of(batch: Tensor) -> tuple[Tensor, Tensor]:
        """The `text_losses` with all heads (N,), and without each of them (L, H, N)."""
        of_batch = targets[batch].to(model.device)

        def measure(x: Tensor) -> Tensor:
            repeated = of_batch.repeat(len(x) // len(of_batch), 1)
            return text_losses(model, x, repeated, counted.mean())

        tokens = inputs[batch].to(model.device)
        return measure_replacements(model, tokens, measure, new)

    with evaluating(model):
        texts = max(1, largest_batch(model, inputs.size(1)) // heads)
        results = [losses_of(batch) for batch in torch.arange(len(inputs)).split(texts)]
    losses, without = (torch.cat(each, dim=-1).cpu() for each in zip(*results, strict=True))
    change = without - losses  # (L, H, N)
    mean = change.mean(dim=-1)
    # The standard error of a ratio: a text with more counted tokens also has a larger sum.
    rest = change - mean[..., None] * (counted / counted.mean() - 1)
    error = rest.std(dim=-1) / change.size(-1) ** 0.5
    return {"loss": losses.mean(), "loss_change": mean, "loss_change_error": error}


def gradient_importance(
    model: GPT, inputs: Tensor, targets: Tensor, *, means: Sequence[Tensor] | None = None
) -> dict[str, Tensor]:
    """Estimate how much the loss on inputs (N, T) depends on each head, with one forward and one
    backward pass. `ablate_heads`, with the same arguments, needs a forward pass per head. What
    replaces a head is zero or, if given, its `means` (see `mean_outputs`).

    Returns a dictionary:

    - `loss` (): the mean loss, in nats per counted token.
    - `gradient_importance` (L, H): |A_h^T dL/dA_h|, summed over the tokens of a text, and averaged
      over the texts. L is the loss of the text, as in `text_losses`. As in the code of Michel 2019,
      the absolute value is taken for each token, so tokens with opposite signs do not cancel out.
    - `loss_change_estimate` (L, H): the first-order estimate of `loss_change`. It is the sum of
      (R_h - A_h)^T dL/dA_h over the tokens of a text, averaged over the texts, where R_h is what
      replaces the output of the head. Above 0, the head lowers the loss.
    """
    loss, importance, change = 0.0, torch.zeros(()), torch.zeros(())
    per_text = counted_per_text(targets).mean()
    zeros = [model.embedding.weight.new_zeros(())] * len(model.attentions)
    with evaluating(model), torch.enable_grad():
        batches = torch.arange(len(inputs)).split(largest_batch(model, inputs.size(1)))
        for batch in batches:
            captured = capture(model, inputs[batch].to(model.device), gradients=True)
            of_batch = targets[batch].to(model.device)
            losses = text_losses(model, captured.residual[-1], of_batch, per_text)
            # Each text affects only its own loss.
            gradients = torch.autograd.grad(losses.sum(), captured.outputs)  # (N, T, H, D) each
            outputs = (a.detach() for a in captured.outputs)
            each = [*zip(outputs, gradients, means or zeros, strict=True)]
            sizes = [(a * g).sum(dim=-1).abs().sum(dim=(0, 1)) for a, g, _ in each]
            changes = [((r - a) * g).sum(dim=(0, 1, 3)) for a, g, r in each]
            loss += float(losses.detach().sum())
            importance = importance + torch.stack(sizes).cpu()
            change = change + torch.stack(changes).cpu()
    count = len(inputs)
    return {
        "loss": torch.tensor(loss / count),
        "gradient_importance": importance / count,
        "loss_change_estimate": change / count,
    }


@torch.no_grad()
def other_induction(
    model: GPT,
    *,
    means: Sequence[Tensor] | None = None,
    excluded: Sequence[int] = (),
    texts: int = TEXTS,
) -> Tensor:
    """For each head (L, H), the largest metric `induction` of all other heads when this head is
    removed. A low value means that the other heads need this head for induction, as induction heads
    need a previous-token head (Elhage 2021).

    The output of the removed head is replaced by zero or, if given, by `means` (H, D) of its layer.
    `excluded` and `texts` are those of `RepeatProbe`. Without other heads, it is NaN.

    Raises UserError for the same reasons as `RepeatProbe`.
    """
    probe = RepeatProbe(model, excluded=excluded, texts=texts)
    heads, largest = model.attentions[0].heads, []
    for number in range(len(model.attentions) * heads):
        with ablated_heads(model, [divmod(number, heads)], means):
            others = probe.metrics(model)["induction"].flatten().tolist()
        del others[number]
        largest.append(max(others, default=torch.nan))
    return torch.tensor(largest).view(-1, heads)


def text_losses(model: GPT, x: Tensor, targets: Tensor, per_text: Tensor) -> Tensor:
    """The summed loss of each text (N,), given the output x (N, T, C) of the last block, divided by
    `per_text`, the mean of `counted_per_text`. The mean over all texts is then the mean loss of all
    counted tokens, in nats per token."""
    losses = next_token_loss(model.unembed(x), targets, reduction="none")
    return losses.view_as(targets).sum(dim=-1) / per_text.to(losses)


def counted_per_text(targets: Tensor) -> Tensor:
    """How many targets (N, T) of each text count, (N,) floats."""
    return (targets != IGNORED).sum(dim=-1).float()


@torch.no_grad()
def mean_outputs(model: GPT, inputs: Tensor) -> list[Tensor]:
    """For each layer, the mean output of each head (H, D) over all tokens of the inputs (N, T)."""
    sums = [torch.zeros((), device=model.device) for _ in model.attentions]
    with evaluating(model):
        for batch in inputs.split(largest_batch(model, inputs.size(1))):
            outputs = head_outputs(model, batch.to(model.device))
            sums = [total + new.sum(dim=(0, 1)) for total, new in zip(sums, outputs, strict=True)]
    return [total / inputs.numel() for total in sums]


def parts_of(model: GPT) -> list[str]:
    """The names of all heads and feed-forward networks, layer by layer."""
    return [
        part
        for layer, block in enumerate(model.blocks)
        for part in (
            *(f"L{layer}H{head}" for head in range(block.attention.heads)),
            *([] if block.feed_forward is None else [f"L{layer} feed-forward"]),
        )
    ]


@torch.no_grad()
def without_parts(
    model: GPT,
    tokens: Tensor,
    forward_pass: ForwardPass,
    parts: Sequence[str],
    position: int,
    token: int,
    by: By = "mean",
) -> Iterator[list[Decider]]:
    """Switches off each of `parts` alone, on one text, tokens (1, T), whose forward pass is given,
    and computes all layers after it again: the total effect of the part (Vig 2020). Yields, for a
    few parts at a time, the probability of `token` after `position`, with and without each part.
    Between two layers, it yields nothing, so that a page can do other work.

    `direct_effects` has the share of this effect that no later layer passes on."""
    mask = model.document_mask(tokens)  # (1, 1, T, T): the same for all parts

    def probabilities(x: Tensor) -> list[float]:
        logits = model.unembed(x[:, position : position + 1])[:, 0]
        return logits.cpu().double().softmax(dim=-1)[:, token].tolist()

    [probability] = probabilities(forward_pass.residual[-1])
    at_once = max(1, ROWS // tokens.size(1))
    for start in range(0, len(parts), at_once):
        chosen = parts[start : start + at_once]
        x = forward_pass.residual[0][:0]  # (P, T, C): the outputs without the parts so far
        names: list[str] = []
        with evaluating(model):
            for layer, block in enumerate(model.blocks):
                after = block(x, model.position, mask=mask) if names else x
                every = range(block.attention.heads)
                heads = [head for head in every if f"L{layer}H{head}" in chosen]
                outputs, fed = forward_pass.outputs[layer][0], forward_pass.fed[layer]
                changed = [after]
                if heads:
                    new = outputs[:, heads].mean(dim=0) if by == "mean" else outputs[0, heads] * 0
                    of_heads = torch.tensor(heads, device=x.device)
                    with replaced_heads(block.attention, of_heads, new[:, None]):
                        expanded = forward_pass.residual[layer].expand(len(heads), -1, -1)
                        changed.append(block(expanded, model.position, mask=mask))
                if (network := f"L{layer} feed-forward") in chosen:
                    new = fed.mean(dim=1, keepdim=True) if by == "mean" else torch.zeros_like(fed)
                    attended = forward_pass.residual[layer] + forward_pass.attended[layer]
                    changed.append(attended + new)
                x = torch.cat(changed)
                names += [f"L{layer}H{head}" for head in heads] + [network] * (network in chosen)
                yield []
        yield [
            {"part": part, "probability": probability, "without": without}
            for part, without in zip(names, probabilities(x), strict=True)
        ]
