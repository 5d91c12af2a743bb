"""What a model predicts after each token of a text, layer by layer and head by head, for the
attention viewer.

Shapes: L layers, H heads, T tokens, C embed_dim, V vocab_size, P listed tokens, N rows.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from headscope.analysis.direct_effects import fold_into, norm_scale
from headscope.analysis.trace import Trace
from headscope.nn import GPT
from headscope.nn.precision import multiplies_bf16_fast, upcast_to_float32
from headscope.viewer.predictions import LISTED, Predictions

ROWS = 256
"""Number of rows whose logits are computed at once. They stay in the processor's cache."""
MAX_PRODUCTS = 2**39
"""For all heads on all tokens, at most this many multiplications: about 10 seconds on two cores."""
MORE = 4
"""Number of additional candidates that are found in bfloat16, before their exact order is known."""


@torch.no_grad()
def predictions(model: GPT, trace: Trace, labels: Sequence[str]) -> Predictions:
    """What `model` predicts after each token of a trace, with the `labels` of all tokens of the
    vocabulary. The tokens that heads raise most are left out if this takes more than MAX_PRODUCTS
    multiplications."""
    layers, heads, length, width = trace.heads.shape
    count, weight = min(LISTED, model.vocab_size), upcast_to_float32(model.head.weight)
    following = torch.cat([trace.tokens[1:], trace.tokens.new_zeros(1)])  # the last is not shown

    def likely(logits: Tensor, rows: Tensor, next_tokens: Tensor) -> tuple[Tensor, ...]:
        if model.logit_cap is not None:
            logits.div_(model.logit_cap).tanh_().mul_(model.logit_cap)
        log_sum = logits.logsumexp(dim=-1, keepdim=True)
        values, tokens = logits.topk(count)
        of_next = logits.gather(-1, next_tokens[:, None])
        return tokens, (values - log_sum).exp(), (of_next - log_sum).exp()

    def raised(logits: Tensor, rows: Tensor, next_tokens: Tensor) -> tuple[Tensor, ...]:
        candidates = logits.topk(min(count + MORE, model.vocab_size)).indices
        exact = torch.bmm(weight[candidates], rows[..., None])[..., 0]
        values, places = exact.topk(count)
        return candidates.gather(-1, places), values

    normal = upcast_to_float32(model.norm(trace.residual))
    places = (layers + 1, length)
    tokens, probabilities, of_next = (
        each.unflatten(0, places) for each in in_chunks(normal, weight, following, likely)
    )
    parts = upcast_to_float32(norm_scale(model.norm, trace.residual[-1]) * trace.heads)
    pushed = upcast_to_float32(fold_into(model.norm, parts))  # (L, H, T, C)
    mean = pushed @ weight.mean(dim=0)
    next_pushes = torch.einsum("lhtc,tc->lht", pushed, weight[following]) - mean
    most: list[Any] = [None, None]
    if layers * heads * length * width * model.vocab_size <= MAX_PRODUCTS:
        rounded = weight.bfloat16() if multiplies_bf16_fast(model.device) else weight
        found = in_chunks(pushed, rounded, following, raised)
        most = [each.unflatten(0, (layers, heads, length)).cpu() for each in found]
        most = [most[0].numpy(), (most[1] - mean[..., None].cpu()).numpy()]
    return Predictions(
        tokens=trace.tokens.cpu().numpy(),
        lens_tokens=tokens.cpu().numpy(),
        lens_probabilities=probabilities.cpu().numpy(),
        next_probabilities=of_next[:, :-1, 0].cpu().numpy(),
        next_pushes=next_pushes[..., :-1].cpu().numpy(),
        push_tokens=most[0],
        push_values=most[1],
        labels=labels,
    )


def in_chunks(
    x: Tensor,
    matrix: Tensor,
    next_tokens: Tensor,
    take: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]],
) -> list[Tensor]:
    """Calls `take` with the logits x W^T of a few rows of x (..., T, C) at a time, with these rows
    (N, C), and with the next token of each row (N,). Returns the concatenated results. The logits
    have the dtype of the matrix. Their memory is used again for the next rows, because new memory
    would take as long as the product."""
    rows, following = x.flatten(0, -2), next_tokens.expand(x.shape[:-1]).flatten()
    memory = matrix.new_empty(ROWS, len(matrix))
    taken = [
        take(torch.mm(chunk.to(matrix), matrix.mT, out=memory[: len(chunk)]), chunk, tokens)
        for chunk, tokens in zip(rows.split(ROWS), following.split(ROWS), strict=True)
    ]
    return [torch.cat(parts) for parts in zip(*taken, strict=True)]
