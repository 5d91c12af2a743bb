"""The laws of watching: what is captured is the model's own, and the model never learns of it."""

from typing import Any

import pytest
import torch
from choices import ATTENTIONS, parts
from small_gpt import gpt, some_tokens
from torch import Tensor

from headscope.analysis.reading import Reading
from headscope.data.tokenizer import byte
from headscope.nn import GPT, MultiHeadAttention
from headscope.nn.capture import capture
from headscope.nn.masks import combine_masks

LAYERS, TOKENS = 3, some_tokens(7, batch=4)
close = {"rtol": 1e-4, "atol": 1e-5}


class Window(MultiHeadAttention):
    """An attention of a user: a query sees its own token and the two before it."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, **options: Any):
        near = torch.ones(q.size(2), k.size(2), dtype=torch.bool).triu(k.size(2) - q.size(2) - 2)
        return super().attend(q, k, v, mask=combine_masks(near, mask), **options)


@pytest.fixture(params=[*ATTENTIONS, "own"])
def model(request: pytest.FixtureRequest) -> GPT:
    own = request.param == "own"
    chosen = parts("multi_head" if own else request.param, "relative")
    chosen |= {"attention": Window} if own else {}
    return gpt(**chosen, layers=LAYERS, block_size=9, dropout=0.5).train()


def test_weights_are_those_that_every_layer_gives_when_asked(model):
    read: list[Tensor] = []
    for block in model.blocks:
        block.attention_norm.register_forward_hook(lambda *call: read.append(call[-1]))
    weights = capture(model, TOKENS).attention
    assert not weights.requires_grad
    reading = Reading(model, TOKENS, byte([]))
    scores = reading.scores.transpose(0, 1)
    model.eval()
    for seen, layer, x in zip(weights, model.attentions, read, strict=False):
        torch.testing.assert_close(seen, layer(x, position=model.position, weights=True)[1])
    torch.testing.assert_close(reading.attention.transpose(0, 1), weights)
    back = 2 if isinstance(model.attentions[0], Window) else 7
    seen_keys = torch.ones(7, 7, dtype=torch.bool).tril().triu(-back)
    masked = scores.masked_fill(~seen_keys, -torch.inf)
    torch.testing.assert_close(masked.softmax(dim=-1), weights)


def test_it_is_the_forward_pass_of_the_model_in_evaluation_mode(model):
    found, weights = capture(model, TOKENS, gradients=True), list(model.blocks.parameters())
    expected = model.eval().hidden(TOKENS)
    torch.testing.assert_close(found.residual[-1], expected, **close)
    theirs = torch.autograd.grad(expected.square().mean(), weights)
    ours = torch.autograd.grad(found.residual[-1].square().mean(), weights)
    torch.testing.assert_close(ours, theirs, **close)


def test_the_mode_comes_back_also_after_an_error(model):
    def pressed(*call):
        raise KeyboardInterrupt

    for training in [True, False]:
        model.train(training)
        with pytest.raises(ValueError, match="10 tokens"):
            capture(model, torch.zeros(1, 10, dtype=torch.long))
        press = model.attentions[1].out_proj.register_forward_pre_hook(pressed)
        with press, pytest.raises(KeyboardInterrupt):
            capture(model, TOKENS)
        assert not any(module._forward_pre_hooks for module in model.modules())
        assert all(module.training == training for module in model.modules())


def test_watching_changes_no_bit_of_logits_and_gradients_and_draws_no_random_numbers(model):
    random, results = torch.get_rng_state(), []
    for watched in (False, True):
        torch.set_rng_state(random)
        if watched:
            capture(model, TOKENS)
        logits = model(TOKENS)
        if watched:
            capture(model, TOKENS, gradients=True)
        gradients = torch.autograd.grad(logits.square().sum(), list(model.blocks.parameters()))
        results.append((logits, *gradients, torch.get_rng_state()))
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))
    assert all(parameter.grad is None for parameter in model.parameters())
