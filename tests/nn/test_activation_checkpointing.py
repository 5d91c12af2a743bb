"""Activation checkpointing gives the same loss and gradients."""

import torch
from choices import every_part
from small_gpt import gpt, some_tokens, variant
from torch import Tensor

from headscope.nn import GPT
from headscope.nn.loss import next_token_loss

TOKENS = some_tokens()
TOKENS[:, [4, 7]] = 10  # the end-of-text token


def loss_of(model: GPT) -> Tensor:
    return next_token_loss(model(TOKENS[:, :-1]), TOKENS[:, 1:])


def step(model: GPT, *, checkpointing: bool = False) -> list[Tensor]:
    """The loss, then the gradient of every parameter."""
    torch.manual_seed(2)
    model.train().checkpoint_activations = checkpointing
    loss = loss_of(model)
    parameters = list(model.parameters())
    return [loss.detach(), *torch.autograd.grad(loss, parameters, materialize_grads=True)]


def bit_identical(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@every_part
def test_activation_checkpointing_gives_bit_identical_gradients(pair):
    for dropout, end_of_text in [(0.0, 10), (0.3, None)]:
        documents = {"document_mask": end_of_text is not None, "end_of_text": end_of_text}
        model = gpt(**variant(pair), **documents, dropout=dropout)
        stored = step(model)
        assert bit_identical(stored, step(model, checkpointing=True))
        if dropout:
            torch.manual_seed(3)
            assert stored[0] != loss_of(model)


def test_activation_checkpointing_in_bf16_gives_bit_identical_gradients():
    model = gpt(dropout=0.3)
    with torch.autocast("cpu", torch.bfloat16):
        assert bit_identical(step(model), step(model, checkpointing=True))
    model.bfloat16()
    assert bit_identical(step(model), step(model, checkpointing=True))


def calls(model: GPT, *, grad: bool) -> int:
    """How often the first block is computed in a forward pass and, with `grad`, a backward pass."""
    computed = []
    hook = model.blocks[0].attention.register_forward_hook(lambda *args: computed.append(1))
    with torch.set_grad_enabled(grad):
        loss = loss_of(model)
    if grad:
        loss.backward()
    hook.remove()
    return len(computed)


def test_activations_are_recomputed_only_in_training():
    model = gpt()
    assert calls(model.train(), grad=True) == 1
    model.checkpoint_activations = True
    assert calls(model.train(), grad=True) == 2
    assert calls(model.train(), grad=False) == 1
    assert calls(model.eval(), grad=True) == 1
