"""What the parts of a model add to the residual stream, one by one.

Shapes: B batch, L layers, H heads, D head_dim, T tokens, C embed_dim, V vocab_size.

The residual stream is a sum: each attention layer adds the outputs of its heads and perhaps a bias,
and each feed-forward network adds its output (Elhage 2021).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headscope.nn import GPT, MultiHeadAttention
from headscope.nn.capture import evaluating


@dataclass(frozen=True, repr=False)
class Trace:
    """The forward pass of a model on a text of T tokens. For several texts of T tokens, every
    tensor has a first axis B.

    - `tokens` (T,) and `logits` (T, V).
    - `attention` (L, H, T, T): the attention weights.
    - `residual` (L + 1, T, C): the input of each block, and the output of the last block.
    - `heads` (L, H, T, C): what each head adds to the residual stream.
    - `feed_forward` (L, T, C): what each feed-forward network adds, zero if there is none.
    - `rest` (L, T, C): the biases of the output projections, zero if there are none.

    Every tensor is part of PyTorch's graph, so gradients reach the weights of the model. Under
    `torch.no_grad()`, nothing is recorded.
    """

    tokens: Tensor
    logits: Tensor
    attention: Tensor
    residual: Tensor
    heads: Tensor
    feed_forward: Tensor
    rest: Tensor
    of_layers: Mapping[str, Sequence[Tensor]]

    def __repr__(self) -> str:
        *_, layers, heads, tokens, width = self.heads.shape
        return f"<Trace: {layers} layers, {heads} heads each, {tokens} tokens, width {width}>"

    def gradient(self, value: Tensor, part: str) -> Tensor:
        """The gradient of the number `value`, such as one of the `logits`, with respect to
        `residual`, `heads` or `feed_forward`. It has the shape of this part."""
        layers = self.of_layers[part]
        gradients = torch.autograd.grad(value, layers, retain_graph=True, materialize_grads=True)
        stacked = torch.stack(gradients, dim=1)
        return stacked if self.tokens.dim() == 2 else stacked[0]


def trace(model: GPT, tokens: Tensor) -> Trace:
    """The `Trace` of `model` on tokens (T,) or (B, T), without dropout. The outputs of the heads
    need B L H T C numbers. Raises UserError if there are more than `block_size` tokens."""
    batch = tokens if tokens.dim() == 2 else tokens[None]
    parts: dict[str, list[Tensor]] = {
        name: [] for name in ("attention", "residual", "heads", "feed_forward", "rest")
    }
    with evaluating(model):
        x, mask = model.embed(batch), model.document_mask(batch)
        for block in model.blocks:
            parts["residual"].append(x)
            with separate_heads(block.attention, parts["heads"]):
                attended, weights = block.attention(
                    block.attention_norm(x), position=model.position, mask=mask, weights=True
                )
            x = x + attended
            if block.feed_forward is None:
                added = torch.zeros_like(x)
            else:
                added = block.feed_forward(block.feed_forward_norm(x))
                x = x + added
            parts["attention"].append(weights)
            parts["feed_forward"].append(added)
            parts["rest"].append(output_bias(block.attention).expand_as(x))
        parts["residual"].append(x)
        logits = model.unembed(x)
    found = {name: torch.stack(layers, dim=1) for name, layers in parts.items()}
    found |= {"tokens": batch, "logits": logits}
    if tokens.dim() == 1:
        found = {name: each[0] for name, each in found.items()}
    return Trace(**found, of_layers=parts)


@contextmanager
def separate_heads(attention: MultiHeadAttention, outputs: list[Tensor]) -> Iterator[None]:
    """Inside this `with` block, each call of `attention` appends what each head adds to the
    residual stream (B, H, T, C) to `outputs`, and returns the sum over the heads and the bias."""

    def hook(module: nn.Module, arguments: tuple[Tensor], output: Tensor) -> Tensor:
        per_head = arguments[0].unflatten(-1, (attention.heads, -1))  # (B, T, H, D)
        outputs.append(torch.einsum("bthd,hcd->bhtc", per_head, output_matrices(attention)))
        return outputs[-1].sum(dim=1) + output_bias(attention)

    handle = attention.out_proj.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def output_matrices(attention: MultiHeadAttention) -> Tensor:
    """The matrices (H, C, D) that map the output of each head to the residual stream. Without an
    output projection, each head writes to its own D dimensions."""
    projection: Any = attention.out_proj
    if attention.has_out_proj:
        matrix = projection.weight
    else:
        matrix = torch.eye(attention.out_dim).to(next(attention.parameters()))
    return matrix.unflatten(1, (attention.heads, attention.head_dim)).transpose(0, 1)


def output_bias(attention: MultiHeadAttention) -> Tensor:
    """The bias of the output projection (C,), or zeros."""
    bias = getattr(attention.out_proj, "bias", None)
    if bias is not None:
        return bias
    return torch.zeros(attention.out_dim).to(next(attention.parameters()))
