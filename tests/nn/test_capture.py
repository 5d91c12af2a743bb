"""The laws of watching: the weights are the model's own, and the model never learns of it."""

from contextlib import nullcontext

import pytest
import torch
from choices import ATTENTIONS, parts
from small_gpt import gpt, some_tokens
from torch import Tensor

from headscope.nn import GPT, make_cache
from headscope.nn.capture import (
    attention_weights,
    attention_weights_and_scores,
    captured_attention,
)

LAYERS, TOKENS = 3, some_tokens(7, batch=4)


@pytest.fixture(params=ATTENTIONS)
def model(request: pytest.FixtureRequest) -> GPT:
    return gpt(**parts(request.param, "relative"), layers=LAYERS, block_size=9, dropout=0.5).train()


def test_weights_are_those_that_every_layer_gives_when_asked(model):
    read: list[Tensor] = []
    for block in model.blocks:
        block.attention_norm.register_forward_hook(lambda *call: read.append(call[-1]))
    weights = attention_weights(model, TOKENS)
    assert weights.shape == (LAYERS, 4, model.attentions[0].heads, 7, 7)
    assert not weights.requires_grad
    model.eval()
    for seen, layer, x in zip(weights, model.attentions, read, strict=True):
        torch.testing.assert_close(seen, layer(x, position=model.position, weights=True)[1])
    again, scores = attention_weights_and_scores(model, TOKENS)
    torch.testing.assert_close(again, weights)
    assert scores.isfinite().all()
    masked = scores.masked_fill(~torch.ones(7, 7, dtype=torch.bool).tril(), -torch.inf)
    torch.testing.assert_close(masked.softmax(dim=-1), weights)


def test_whoever_asks_for_weights_inside_gets_them(model):
    layer, x = model.eval().attentions[0], torch.randn(2, 5, 16)
    expected = layer(x, weights=True)
    with captured_attention(model) as captured:
        watched = layer(x, weights=True)
    assert all(torch.equal(*pair) for pair in zip(watched, expected, strict=True))
    assert torch.equal(captured[0], expected[1])


def test_the_mode_comes_back_also_after_an_error(model):
    for training in [True, False]:
        model.train(training)
        attention_weights(model, TOKENS)
        assert all(module.training == training for module in model.modules())
        with pytest.raises(ValueError, match="10 tokens"):
            attention_weights(model, torch.zeros(1, 10, dtype=torch.long))
        with pytest.raises(KeyboardInterrupt), captured_attention(model):
            raise KeyboardInterrupt
        assert not any(layer._forward_hooks for layer in model.attentions)
        assert all(module.training == training for module in model.modules())


@torch.no_grad()
def test_what_is_read_with_a_cache_is_watched_too(model):
    weights, cache = attention_weights(model.eval(), TOKENS), make_cache(model, 4)
    model.hidden(TOKENS[:, :5], cache)
    with captured_attention(model) as captured:
        after = model.hidden(TOKENS[:, 5:], cache)
    torch.testing.assert_close(torch.stack(captured), weights[..., 5:, :], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(after, model.hidden(TOKENS)[:, 5:], rtol=1e-4, atol=1e-4)


def test_watching_changes_no_bit_of_logits_and_gradients_and_draws_no_random_numbers(model):
    random, results = torch.get_rng_state(), []
    for capture in (nullcontext([]), captured_attention(model)):
        torch.set_rng_state(random)
        with capture as captured:
            logits = model(TOKENS)
        gradients = torch.autograd.grad(logits.square().sum(), list(model.blocks.parameters()))
        results.append((logits, *gradients, torch.get_rng_state()))
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))
    assert len(captured) == LAYERS
    assert not any(weights.requires_grad for weights in captured)
    attention_weights(model, TOKENS)
    assert torch.equal(torch.get_rng_state(), results[0][-1])
