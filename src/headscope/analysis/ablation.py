"""Ablation of heads: measures what changes when one head is removed. The loss shows how much the
model needs the head (Michel 2019). The induction of the other heads shows whether they need it.

Shapes: L layers, H heads, D head_dim, N texts, T tokens, C embed_dim.

The output of a head is the slice of the input of `out_proj` that this head computes: D numbers per
token.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor

from headscope.analysis.repeats import RepeatProbe
from headscope.nn import GPT, MultiHeadAttention
from headscope.nn.loss import next_token_loss

Replacement = Literal["zero", "mean"]
MAX_BATCH = 64

TEXTS = 16
"""Number of repeated random texts. It is smaller than in a report, because these texts are measured
once per head."""


@torch.no_grad()
def ablate_heads(
    model: GPT,
    inputs: Tensor,
    targets: Tensor,
    *,
    replace_by: Replacement = "zero",
    max_batch: int = MAX_BATCH,
    track: Callable[[Iterable[Tensor]], Iterable[Tensor]] = iter,
) -> dict[str, Tensor]:
    """Measure how much the loss on inputs (N, T) changes when one head is removed. To remove a
    head, its output is replaced by zero, or by its mean over all tokens of the inputs.

    Returns a dictionary:

    - `loss` (): the mean loss with all heads, in nats per token.
    - `nats_per_token` (L, H): the loss without each head minus the loss with all heads. A positive
      value means that the head lowers the loss.
    - `standard_error` (L, H): the standard error of `nats_per_token` over the N texts. For a single
      text, the standard error is NaN.

    A batch contains at most `max_batch` texts. To remove several heads in one batch, the batch
    contains a copy of each text per head. `track` wraps the iterable of batches, for example to
    show progress.
    """
    was_training = model.training
    model.eval()
    try:
        means = mean_outputs(model, inputs, max_batch) if replace_by == "mean" else None
        texts = max(1, max_batch // model.attentions[0].heads)
        results = [
            _loss_changes(model, inputs[batch], targets[batch], means, max_batch)
            for batch in track(torch.arange(len(inputs)).split(texts))
        ]
    finally:
        model.train(was_training)
    change = torch.cat([change for change, _ in results], dim=-1)  # (L, H, N)
    return {
        "loss": torch.cat([losses for _, losses in results]).mean(),
        "nats_per_token": change.mean(dim=-1),
        "standard_error": change.std(dim=-1) / change.size(-1) ** 0.5,
    }


def _loss_changes(
    model: GPT, inputs: Tensor, targets: Tensor, means: list[Tensor] | None, max_batch: int
) -> tuple[Tensor, Tensor]:
    """Returns two tensors in nats per token: the change of each text's mean loss when each head is
    removed (L, H, N), and each text's mean loss with all heads (N,)."""
    inputs, targets = inputs.to(model.device), targets.to(model.device)
    x, mask = model.embed(inputs), model.document_mask(inputs)
    block_inputs = []  # (N, T, C) each
    for block in model.blocks:
        block_inputs.append(x)
        x = block(x, model.position, mask=mask)
    losses = _losses(model, x, targets)  # (N,)
    changes = []
    for layer, (attention, x) in enumerate(zip(model.attentions, block_inputs, strict=True)):
        all_heads = torch.arange(attention.heads, device=x.device)
        ablated = []
        for heads in all_heads.split(max(1, max_batch // len(x))):
            y = x.repeat(len(heads), 1, 1)  # one copy of the texts per head
            masks = None if mask is None else mask.repeat(len(heads), 1, 1, 1)
            layer_means = None if means is None else means[layer]
            with replaced_heads(attention, heads.repeat_interleave(len(x)), layer_means):
                y = model.blocks[layer](y, model.position, mask=masks)
            for block in model.blocks[layer + 1 :]:
                y = block(y, model.position, mask=masks)
            without = _losses(model, y, targets.repeat(len(heads), 1))
            ablated.append(without.unflatten(0, (len(heads), len(x))))
        changes.append(torch.cat(ablated) - losses)
    return torch.stack(changes).cpu(), losses.cpu()


@torch.no_grad()
def other_induction(
    model: GPT,
    *,
    means: list[Tensor] | None = None,
    excluded: Sequence[int] = (),
    texts: int = TEXTS,
) -> Tensor:
    """For each head (L, H), the largest metric `induction` of all other heads when this head is
    removed. A low value means that the other heads need this head for induction, as induction heads
    need a previous-token head (Elhage 2021).

    The output of the removed head is replaced by zero or, if given, by `means` (H, D) of its layer.
    `excluded` and `texts` are those of `RepeatProbe`. A model with a single head has no other
    heads, which gives NaN.

    Raises UserError for the same reasons as `RepeatProbe`.
    """
    probe = RepeatProbe(model, excluded=excluded, texts=texts)
    layers, heads = len(model.attentions), model.attentions[0].heads
    largest = torch.full((layers, heads), torch.nan)
    for layer, attention in enumerate(model.attentions):
        layer_means = None if means is None else means[layer]
        for head in range(heads):
            removed = torch.tensor([head], device=model.device)  # the same head in all texts
            with replaced_heads(attention, removed, layer_means):
                induction = probe.figures(model)["induction"]
            others = torch.arange(layers * heads) != layer * heads + head
            if others.any():
                largest[layer, head] = induction.cpu().flatten()[others].max()
    return largest


def _losses(model: GPT, x: Tensor, targets: Tensor) -> Tensor:
    """The mean loss of each text (N,), given the output x (N, T, C) of the last block."""
    losses = next_token_loss(model.unembed(x), targets, reduction="none")
    return losses.view_as(targets).mean(dim=-1)


@contextmanager
def replaced_heads(
    attention: MultiHeadAttention, heads: Tensor, means: Tensor | None
) -> Iterator[None]:
    """Inside this `with` block, the output of one head per text is replaced. In text n, this is
    head `heads[n]`; `heads` has shape (N,), or (1,) for the same head in all texts. The new output
    is zero or, if `means` (H, D) is given, the mean output of that head."""

    def replace(module: torch.nn.Module, arguments: tuple[Tensor]) -> Tensor:
        outputs = arguments[0].unflatten(-1, (attention.heads, -1)).clone()  # (N, T, H, D)
        texts = torch.arange(len(outputs), device=outputs.device)
        outputs[texts, :, heads] = 0.0 if means is None else means[heads][:, None]
        return outputs.flatten(-2)

    handle = attention.out_proj.register_forward_pre_hook(replace)
    try:
        yield
    finally:
        handle.remove()


def mean_outputs(model: GPT, inputs: Tensor, max_batch: int) -> list[Tensor]:
    """For each layer, the mean output of each head (H, D) over all tokens of the inputs (N, T)."""
    sums = [torch.zeros(()) for _ in model.attentions]
    handles = []
    for layer, attention in enumerate(model.attentions):

        def add(module: torch.nn.Module, arguments: tuple[Tensor], layer: int = layer) -> None:
            sums[layer] = sums[layer].to(arguments[0]) + arguments[0].sum(dim=(0, 1))

        handles.append(attention.out_proj.register_forward_pre_hook(add))
    try:
        for batch in inputs.split(max_batch):
            model.hidden(batch.to(model.device))
    finally:
        for handle in handles:
            handle.remove()
    return [
        (total / inputs.numel()).unflatten(0, (attention.heads, -1))
        for total, attention in zip(sums, model.attentions, strict=True)
    ]
