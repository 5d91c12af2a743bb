"""Activation checkpointing gives the same loss and gradients."""

from contextlib import nullcontext

import torch
from choices import every_part
from small_gpt import gpt, loss_of, some_tokens, variant
from torch import Tensor

from headscope.nn import GPT

TOKENS = some_tokens()
TOKENS[:, [4, 7]] = 10  # the end-of-text token


def step(model: GPT, *, checkpointing: bool) -> list[Tensor]:
    """The loss, then the gradient of every parameter."""
    torch.manual_seed(2)
    model.train().checkpoint_activations = checkpointing
    loss, parameters = loss_of(model, TOKENS), [*model.parameters()]
    return [loss.detach(), *torch.autograd.grad(loss, parameters, materialize_grads=True)]


@every_part
def test_activation_checkpointing_gives_bit_identical_gradients(pair):
    for options in ({"document_mask": True, "end_of_text": 10}, {"dropout": 0.3}):
        model = gpt(**variant(pair), **options)
        for precision in (nullcontext(), torch.autocast("cpu", torch.bfloat16)):
            with precision:
                stored, recomputed = (step(model, checkpointing=on) for on in (False, True))
            assert all(torch.equal(*both) for both in zip(stored, recomputed, strict=True))


def test_activations_are_recomputed_only_in_training():
    model, computed = gpt(), []
    model.checkpoint_activations = True
    model.blocks[0].attention.register_forward_hook(lambda *call: computed.append(1))
    for training, grad, times in ((True, True, 2), (True, False, 1), (False, True, 1)):
        computed.clear()
        with torch.set_grad_enabled(grad):
            loss = loss_of(model.train(training), TOKENS)
        if grad:
            loss.backward()
        assert len(computed) == times
