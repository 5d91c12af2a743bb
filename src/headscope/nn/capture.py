"""Captures what a forward pass computes inside a model, also weights that fused kernels hide.

Shapes: B batch, L layers, H heads, D head_dim, T queries, S keys, C embed_dim.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from headscope.errors import UserError
from headscope.nn.attention import MultiHeadAttention
from headscope.nn.block import Block
from headscope.nn.gpt import GPT
from headscope.nn.held import Held


@dataclass(frozen=True)
class ForwardPass:
    """What a forward pass computes. Each is a list with a tensor per layer:

    - `residual` (B, T, C): the input of each block, and the output of the last block, L + 1.
    - `weights` (B, H, T, S): the attention weights.
    - `outputs` (B, T, H, D): the outputs of the heads before `out_proj`.
    - `attended` (B, T, C): what attention adds to the residual stream.
    - `fed` (B, T, C): what the feed-forward network adds. Zero if there is no network.
    """

    residual: list[Tensor]
    weights: list[Tensor]
    outputs: list[Tensor]
    attended: list[Tensor]
    fed: list[Tensor]

    @property
    def attention(self) -> Tensor:
        """The attention weights (L, B, H, T, S)."""
        return torch.stack(self.weights)


def capture(model: GPT, tokens: Tensor, *, gradients: bool = False) -> ForwardPass:
    """The forward pass of `model` on `tokens` (B, T), without dropout, on the explicit path of
    attention. Without `gradients`, PyTorch records no graph."""
    with evaluating(model), torch.set_grad_enabled(gradients):
        return capture_blocks(model, tokens)


def check_block(block: Block) -> None:
    """Raises UserError for a class of a user whose output is not the sum that is taken apart."""
    for name in ("forward", "add_branches", "fed"):
        if getattr(type(block), name) is not getattr(Block, name):
            problem = f"{type(block).__name__} has its own {name}, so heads cannot be analysed"
            raise UserError(f"{problem}: override network_input instead, or use callbacks=plain")


def capture_blocks(model: GPT, tokens: Tensor) -> ForwardPass:
    """Like `GPT.hidden`, with dropout in training, but returns the whole `ForwardPass`."""
    x, mask = model.embed(tokens), model.document_mask(tokens)
    if torch.is_grad_enabled() and not x.requires_grad:
        x = x.detach().requires_grad_()  # all parameters are frozen
    forward_pass = ForwardPass([x], [], [], [], [])
    for block in model.blocks:
        check_block(block)
        with kept_outputs(block.attention, forward_pass.outputs):
            attended, weights = block.attention(
                block.attention_norm(x), position=model.position, mask=mask, weights=True
            )
        attended = block.dropout(attended)
        fed = block.fed(x, x + attended)
        x = x + attended if block.feed_forward is None else x + attended + fed
        forward_pass.residual.append(x)
        forward_pass.weights.append(weights)
        forward_pass.attended.append(attended)
        forward_pass.fed.append(fed)
    return forward_pass


def changed_outputs(
    attention: MultiHeadAttention, change: Callable[[Tensor], Tensor]
) -> RemovableHandle:
    """Inside this `with` block, `change` maps the outputs of the heads (B, T, H, D) to the outputs
    that `out_proj` gets. `change` must not modify its argument in place."""

    def hook(module: nn.Module, arguments: tuple[Tensor]) -> Tensor:
        return change(arguments[0].unflatten(-1, (attention.heads, -1))).flatten(-2)

    return attention.out_proj.register_forward_pre_hook(hook)


def kept_outputs(attention: MultiHeadAttention, outputs: list[Tensor]) -> RemovableHandle:
    """Inside this `with` block, every call of `attention` appends its heads' outputs (B, T, H, D)
    to `outputs`: those that `out_proj` gets, perhaps from a hook. Gradients pass through."""

    def keep(x: Tensor) -> Tensor:
        outputs.append(x)
        return x

    return changed_outputs(attention, keep)


def copy_with_hooks(module: Any) -> Any:
    """A copy of a module with the same weights, and with its hooks: what is switched off, replaced
    or held in one of the two from now on is not in the other."""
    copied = module.__new__(type(module))
    for name, part in vars(module).items():  # PyTorch keeps parts and hooks in dictionaries
        vars(copied)[name] = part.copy() if isinstance(part, dict) else part
    copied._compiled_call_impl = None  # it would call the original
    for name, child in module._modules.items():
        copied._modules[name] = None if child is None else copy_with_hooks(child)
    if isinstance(copied, Held):  # its buffers change in place
        copied.mask, copied.values = copied.mask.clone(), copied.values.clone()
    return copied


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Inside this `with` block, the model is in evaluation mode."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
