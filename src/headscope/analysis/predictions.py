"""What a model predicts after each token of a text, layer by layer and head by head, for the
attention viewer.

Shapes: L layers, H heads, T tokens, C embed_dim, V vocab_size, P listed tokens.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from headscope.analysis.direct_effects import norm_scale, push_directions
from headscope.analysis.trace import Trace
from headscope.nn import GPT
from headscope.nn.precision import upcast_to_float32
from headscope.viewer.predictions import LISTED, Predictions

ROWS = 128
"""Number of rows whose logits are computed at once. They stay in the processor's cache."""
MAX_PRODUCTS = 2**39
"""For all heads on all tokens, at most this many multiplications: about 10 seconds on two cores."""


@torch.no_grad()
def predictions(model: GPT, trace: Trace, labels: Sequence[str]) -> Predictions:
    """What `model` predicts after each token of a trace, with the `labels` of all tokens of the
    vocabulary. The tokens that heads raise most are left out if this takes more than MAX_PRODUCTS
    multiplications."""
    final, following = trace.residual[-1], trace.tokens[1:]
    layers, heads, length, width = trace.heads.shape
    count = min(LISTED, model.vocab_size)
    cap = model.logit_cap

    def likely(logits: Tensor, next_tokens: Tensor) -> tuple[Tensor, ...]:
        if cap is not None:
            logits.div_(cap).tanh_().mul_(cap)
        log_sum = logits.logsumexp(dim=-1, keepdim=True)
        values, tokens = logits.topk(count)
        found = logits.gather(-1, next_tokens)
        return tokens, (values - log_sum).exp(), (found - log_sum).exp()

    def raised(logits: Tensor, next_tokens: Tensor) -> tuple[Tensor, ...]:
        return tuple(reversed(logits.topk(count)))

    next_tokens = torch.cat([following, following.new_zeros(1)])  # the last one is not shown
    shape = (layers + 1, length)
    tokens, probabilities, of_next = (
        each.unflatten(0, shape)
        for each in in_chunks(model.norm(trace.residual), model.head.weight, next_tokens, likely)
    )
    pushed = norm_scale(model.norm, final) * trace.heads  # (L, H, T, C)
    matrix = push_directions(model)
    next_pushes = torch.einsum("lhtc,tc->lht", pushed[:, :, :-1], matrix[following])
    most: list[Any] = [None, None]
    if layers * heads * length * width * model.vocab_size <= MAX_PRODUCTS:
        found = in_chunks(pushed, matrix, next_tokens, raised)
        most = [each.unflatten(0, (layers, heads, length)).cpu().numpy() for each in found]
    return Predictions(
        tokens=trace.tokens.cpu().numpy(),
        lens_tokens=tokens.cpu().numpy(),
        lens_probabilities=probabilities.cpu().numpy(),
        next_probabilities=of_next[:, :-1, 0].cpu().numpy(),
        next_pushes=next_pushes.float().cpu().numpy(),
        push_tokens=most[0],
        push_values=most[1],
        labels=labels,
    )


def in_chunks(
    x: Tensor,
    matrix: Tensor,
    next_tokens: Tensor,
    take: Callable[[Tensor, Tensor], tuple[Tensor, ...]],
) -> Iterator[Tensor]:
    """Calls `take` with the logits x W^T of a few rows of x (..., T, C) at a time, and with the
    next token of each row. Returns the concatenated results. The memory of the logits is used again
    for the next rows, because new memory would take as long as the product."""
    rows, following = x.flatten(0, -2), next_tokens.expand(x.shape[:-1]).flatten()
    rows, matrix = upcast_to_float32(rows), upcast_to_float32(matrix)
    memory = rows.new_empty(ROWS, len(matrix))
    taken = [
        take(torch.mm(chunk, matrix.mT, out=memory[: len(chunk)]), tokens[:, None])
        for chunk, tokens in zip(rows.split(ROWS), following.split(ROWS), strict=True)
    ]
    return (torch.cat(parts) for parts in zip(*taken, strict=True))
