"""What a head is worth: the loss without it.

Shapes: L layers, H heads, D head_dim, N texts, T tokens, C embed_dim.

A head's output is what it adds before `out_proj`: its D numbers of every token.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor

from headscope.nn import GPT, MultiHeadAttention
from headscope.nn.loss import next_token_loss

Replacement = Literal["zero", "mean"]
AT_ONCE = 64


@torch.no_grad()
def ablate_heads(
    model: GPT,
    inputs: Tensor,
    targets: Tensor,
    *,
    replace_by: Replacement = "zero",
    at_once: int = AT_ONCE,
    track: Callable[[Iterable[Tensor]], Iterable[Tensor]] = iter,
) -> dict[str, Tensor]:
    """What the loss on inputs (N, T) changes by when one head's output is replaced by zero, or by
    its mean over all these tokens (Michel 2019): `nats_per_token` and its `standard_error`, (L, H)
    each, and `loss`, that with all heads.

    A head that is worth something has a change above 0. The error is that of the mean of N texts,
    each with and without the head; of one text alone it is NaN. At most about `at_once` texts go
    through the model at a time: all heads of a layer together where they fit. `track` is given the
    batches, to show how far it is.
    """
    was_training = model.training
    model.eval()
    try:
        means = mean_outputs(model, inputs, at_once) if replace_by == "mean" else None
        rows = max(1, at_once // model.attentions[0].heads)
        parts = [
            _changes(model, inputs[part], targets[part], means, at_once)
            for part in track(torch.arange(len(inputs)).split(rows))
        ]
    finally:
        model.train(was_training)
    change = torch.cat([change for change, _ in parts], dim=-1)  # (L, H, N)
    return {
        "loss": torch.cat([whole for _, whole in parts]).mean(),
        "nats_per_token": change.mean(dim=-1),
        "standard_error": change.std(dim=-1) / change.size(-1) ** 0.5,
    }


def _changes(
    model: GPT, inputs: Tensor, targets: Tensor, means: list[Tensor] | None, at_once: int
) -> tuple[Tensor, Tensor]:
    """The change of every text's mean loss (L, H, N), in nats per token, and that loss (N,)."""
    inputs, targets = inputs.to(model.device), targets.to(model.device)
    x = model.embed(inputs)
    before = []  # what every block reads, (N, T, C)
    for block in model.blocks:
        before.append(x)
        x = block(x, model.position)
    whole = _losses(model, x, targets)  # (N,)
    layers = []
    for layer, (attention, x) in enumerate(zip(model.attentions, before, strict=True)):
        heads = torch.arange(attention.heads, device=x.device)
        losses = []
        for some in heads.split(max(1, at_once // len(x))):
            y = x.repeat(len(some), 1, 1)  # the texts once for each head
            replacement = None if means is None else means[layer]
            with replaced(attention, some.repeat_interleave(len(x)), replacement):
                y = model.blocks[layer](y, model.position)
            for block in model.blocks[layer + 1 :]:
                y = block(y, model.position)
            without = _losses(model, y, targets.repeat(len(some), 1))
            losses.append(without.unflatten(0, (len(some), len(x))))
        layers.append(torch.cat(losses) - whole)
    return torch.stack(layers).cpu(), whole.cpu()


def _losses(model: GPT, x: Tensor, targets: Tensor) -> Tensor:
    """The mean loss of every text, (N,), from what the last block wrote (N, T, C)."""
    losses = next_token_loss(model.unembed(x), targets, reduction="none")
    return losses.view_as(targets).mean(dim=-1)


@contextmanager
def replaced(attention: MultiHeadAttention, heads: Tensor, means: Tensor | None) -> Iterator[None]:
    """Inside, text n is read without the head `heads`[n] (N,): its output is zero, or its part of
    `means` (H, D)."""

    def without(module: torch.nn.Module, arguments: tuple[Tensor]) -> Tensor:
        mixed = arguments[0].unflatten(-1, (attention.heads, -1)).clone()  # (N, T, H, D)
        texts = torch.arange(len(mixed), device=mixed.device)
        mixed[texts, :, heads] = 0.0 if means is None else means[heads][:, None]
        return mixed.flatten(-2)

    handle = attention.out_proj.register_forward_pre_hook(without)
    try:
        yield
    finally:
        handle.remove()


def mean_outputs(model: GPT, inputs: Tensor, at_once: int) -> list[Tensor]:
    """The mean output of every head over all tokens of inputs (N, T): (H, D) for each layer."""
    sums = [torch.zeros(()) for _ in model.attentions]
    handles = []
    for layer, attention in enumerate(model.attentions):

        def add(module: torch.nn.Module, arguments: tuple[Tensor], layer: int = layer) -> None:
            sums[layer] = sums[layer].to(arguments[0]) + arguments[0].sum(dim=(0, 1))

        handles.append(attention.out_proj.register_forward_pre_hook(add))
    try:
        for some in inputs.split(at_once):
            model.hidden(some.to(model.device))
    finally:
        for handle in handles:
            handle.remove()
    return [
        (total / inputs.numel()).unflatten(0, (attention.heads, -1))
        for total, attention in zip(sums, model.attentions, strict=True)
    ]
