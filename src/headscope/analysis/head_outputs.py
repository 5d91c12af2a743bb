"""Reads and replaces the outputs of heads in a forward pass, for ablation and activation patching.

Shapes: L layers, H heads, D head_dim, N texts, T tokens, C embed_dim, V vocab_size.

The output of a head is its slice of the input of `out_proj`: D numbers per token.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from headscope.errors import UserError
from headscope.nn import GPT, MultiHeadAttention
from headscope.nn.block import Block
from headscope.nn.capture import changed_outputs, kept_outputs
from headscope.nn.dot_product import one_per_query_head

Head = tuple[int, int]
"""Layer and head."""
Track = Callable[[Iterable[Any]], Iterable[Any]]
"""Wraps the iterable of batches, or of other things, for example to show progress."""
MAX_BATCH = 64
MAX_LOGITS = 2**27
"""Maximum number of logits of a batch. In float32, they take 512 MiB."""


def parse_head(name: str, model: GPT) -> Head:
    """Parse a name such as L0H1 into layer and head. Raises UserError for an unknown head."""
    layers, heads = len(model.attentions), model.attentions[0].heads
    match = re.fullmatch(r"L(\d{1,5})H(\d{1,5})", str(name), re.ASCII)
    if not match or int(match[1]) >= layers or int(match[2]) >= heads:
        advice = f"name one of L0H0 to L{layers - 1}H{heads - 1}"
        raise UserError(f"{name}: this model has no such head; {advice}")
    return int(match[1]), int(match[2])


def largest_batch(model: GPT, length: int) -> int:
    """The number of texts of `length` tokens in a batch: at most MAX_BATCH texts and, except for a
    single text, at most MAX_LOGITS logits."""
    return max(1, min(MAX_BATCH, MAX_LOGITS // (length * model.vocab_size)))


def replaced_heads(
    attention: MultiHeadAttention, heads: Tensor | int, new: Tensor, positions: slice = slice(None)
) -> RemovableHandle:
    """Inside this `with` block, the output of one head per text is replaced by `new`, at the given
    positions. In text n, this is head `heads[n]`; `heads` has shape (N,), or is the number of the
    same head in all texts. `new` has shape (N, T, D), or a shape that can be broadcast to it."""

    def replace(outputs: Tensor) -> Tensor:
        texts, tokens, _, width = outputs.shape
        outputs, every = outputs.clone(), torch.arange(texts, device=outputs.device)
        expanded = new.to(outputs).expand(texts, tokens, width)
        outputs[every, positions, heads] = expanded[:, positions]
        return outputs

    return changed_outputs(attention, replace)


def head_outputs(model: GPT, tokens: Tensor) -> list[Tensor]:
    """For each layer, the outputs of all heads (N, T, H, D) on tokens (N, T)."""
    outputs: list[Tensor] = []
    with ExitStack() as stack:
        for attention in model.attentions:
            stack.enter_context(kept_outputs(attention, outputs))
        model.hidden(tokens)
    return outputs


def output_matrices(attention: MultiHeadAttention) -> Tensor:
    """The matrices (H, C, D) that map the output of each head to the residual stream. Without an
    output projection, each head writes to its own D dimensions."""
    matrix = getattr(attention.out_proj, "weight", None)
    if matrix is None:
        matrix = torch.eye(attention.out_dim).to(next(attention.parameters()))
    return matrix.unflatten(1, (attention.heads, attention.head_dim)).transpose(0, 1)


def moved_values(block: Block, x: Tensor, weights: Tensor, outputs: Tensor) -> Tensor:
    """The values (N, H, T, D) that the heads of a block move, for its input x (N, T, C). NaN in
    heads whose outputs (N, T, H, D) are not the sums of these values with `weights` (N, H, T, T):
    in heads that are switched off or held, and in an attention of the user that computes others."""
    attention, x = block.attention, block.attention_norm(x)
    values = one_per_query_head(attention.project(x, x, x)[2], attention.heads)
    outputs = outputs.transpose(1, 2)
    both = (weights @ values.to(weights.dtype) - outputs, outputs)
    error, size = (torch.linalg.vector_norm(each, dim=(0, 2, 3)) for each in both)
    return values.masked_fill((error > 0.01 * size)[:, None, None], torch.nan)


def output_bias(attention: MultiHeadAttention) -> Tensor:
    """The bias of the output projection (C,), or zeros."""
    bias = getattr(attention.out_proj, "bias", None)
    zeros = torch.zeros(attention.out_dim).to(next(attention.parameters()))
    return zeros if bias is None else bias


def measure_replacements(
    model: GPT,
    tokens: Tensor,
    measure: Callable[[Tensor], Tensor],
    outputs: Sequence[Tensor],
    *,
    positions: slice = slice(None),
) -> tuple[Tensor, Tensor]:
    """Measure texts, tokens (N, T), with the output of one head replaced, for each head, by that in
    `outputs`: for each layer (T, H, D), or (1, H, D) if it is the same for all tokens.

    `measure` maps the output of the last block (K N, T, C) on K copies of the texts to one number
    per text (K N,). Returns what is measured without a replacement (N,), and with each (L, H, N).

    Several heads are replaced in one batch, which contains a copy of the texts for each of these
    heads (see `largest_batch`). The layers before the head are computed only once.
    """
    limit = largest_batch(model, tokens.size(1))
    x, mask = model.embed(tokens), model.document_mask(tokens)
    block_inputs = []  # (N, T, C) each
    for block in model.blocks:
        block_inputs.append(x)
        x = block(x, model.position, mask=mask)
    measured = measure(x)
    changed = []
    for layer, (attention, x) in enumerate(zip(model.attentions, block_inputs, strict=True)):
        all_heads = torch.arange(attention.heads, device=x.device)
        of_layer = []
        for heads in all_heads.split(max(1, limit // len(x))):
            y = x.repeat(len(heads), 1, 1)  # one copy of the texts per head
            masks = None if mask is None else mask.repeat(len(heads), 1, 1, 1)
            new = outputs[layer][:, heads].transpose(0, 1)  # (K, T, D)
            new = new.repeat_interleave(len(x), dim=0)
            with replaced_heads(attention, heads.repeat_interleave(len(x)), new, positions):
                y = model.blocks[layer](y, model.position, mask=masks)
            for block in model.blocks[layer + 1 :]:
                y = block(y, model.position, mask=masks)
            of_layer.append(measure(y).unflatten(0, (len(heads), len(x))))
        changed.append(torch.cat(of_layer))
    return measured, torch.stack(changed)
