"""The laws of watching: the weights are the model's own, and the model never learns of it."""

from contextlib import nullcontext

import pytest
import torch
from attention_layers import HEADS_OF
from choices import ATTENTIONS, POSITIONS, every_pair
from small_gpt import make_gpt
from torch import Tensor, nn

from headscope.nn import GPT, Relative, make_cache
from headscope.nn.capture import (
    attention_weights,
    attention_weights_and_scores,
    captured_attention,
)

LAYERS, HEADS = 3, 4


def gpt(name: str, **options) -> GPT:
    """With attention far from even."""
    sizes = {"vocab_size": 11, "block_size": 9, "embed_dim": 8, "layers": LAYERS, "heads": HEADS}
    model = make_gpt(**(sizes | HEADS_OF.get(name, {}) | {"attention": ATTENTIONS[name]} | options))
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, generator=generator)
    return model


@pytest.fixture(params=ATTENTIONS)
def model(request: pytest.FixtureRequest) -> GPT:
    return gpt(request.param, dropout=0.5, position=Relative).train()


def some_tokens() -> Tensor:
    return torch.randint(11, (4, 7), generator=torch.Generator().manual_seed(1))


def attentions(model: GPT) -> list[nn.Module]:
    return [block.attention for block in model.blocks]


def read_by_attention(model: GPT) -> list[Tensor]:
    """A list that each layer of attention will append its input to."""
    read = []
    for block in model.blocks:
        block.attention_norm.register_forward_hook(lambda *call: read.append(call[-1]))
    return read


def test_weights_are_those_that_every_layer_gives_when_asked(model):
    read = read_by_attention(model)
    weights = attention_weights(model, some_tokens())
    assert weights.shape == (LAYERS, 4, attentions(model)[0].heads, 7, 7)
    assert not weights.requires_grad
    model.eval()
    for seen, layer, x in zip(weights, attentions(model), read, strict=True):
        torch.testing.assert_close(seen, layer(x, position=model.position, weights=True)[1])


@every_pair
def test_softmax_of_the_masked_scores_is_the_weights(pair):
    name, position = pair
    model = gpt(name, dropout=0.5, position=POSITIONS[position])
    weights, scores = attention_weights_and_scores(model.train(), some_tokens())
    torch.testing.assert_close(attention_weights(model, some_tokens()), weights)
    assert scores.shape == weights.shape
    assert scores.isfinite().all()
    masked = scores.masked_fill(~torch.ones(7, 7, dtype=torch.bool).tril(), -torch.inf)
    torch.testing.assert_close(masked.softmax(dim=-1), weights)
    assert not scores.requires_grad


@pytest.mark.parametrize("position", ["alibi", "relative", "head_bias"])
def test_scores_are_scaled_dot_products_plus_the_bias_also_of_the_future(position):
    model = gpt("multi_head", position=POSITIONS[position])
    read = read_by_attention(model)
    _, scores = attention_weights_and_scores(model, some_tokens())
    for layer, (block, x) in enumerate(zip(model.blocks, read, strict=True)):
        queries, keys, _ = (
            block.attention.split(part) for part in block.attention.qkv(x).chunk(3, dim=-1)
        )
        expected = queries @ keys.mT / 2**0.5 + model.position.bias(7, 7)
        torch.testing.assert_close(scores[layer], expected)


def test_weights_are_without_dropout(model):
    weights = attention_weights(model, some_tokens())
    assert torch.equal(attention_weights(model, some_tokens()), weights)
    assert torch.equal(attention_weights(model.eval(), some_tokens()), weights)


def test_whoever_asks_for_weights_inside_gets_them(model):
    layer, x = attentions(model.eval())[0], torch.randn(2, 5, 8)
    expected = layer(x, weights=True)
    with captured_attention(model) as captured:
        watched = layer(x, weights=True)
    assert all(torch.equal(*pair) for pair in zip(watched, expected, strict=True))
    assert torch.equal(captured[0], expected[1])


def test_the_mode_comes_back_also_after_an_error(model):
    for training in [True, False]:
        model.train(training)
        attention_weights(model, some_tokens())
        assert all(module.training == training for module in model.modules())
        with pytest.raises(ValueError, match="10 tokens"):
            attention_weights(model, torch.zeros(1, 10, dtype=torch.long))
        with pytest.raises(KeyboardInterrupt), captured_attention(model):
            raise KeyboardInterrupt
        assert not any(layer._forward_hooks for layer in attentions(model))
        assert all(module.training == training for module in model.modules())


@torch.no_grad()
def test_what_is_read_with_a_cache_is_watched_too(model):
    model.eval()
    tokens = some_tokens()
    weights = attention_weights(model, tokens)
    cache = make_cache(model, 4)
    model.hidden(tokens[:, :5], cache)
    with captured_attention(model) as captured:
        after = model.hidden(tokens[:, 5:], cache)
    torch.testing.assert_close(torch.stack(captured), weights[..., 5:, :], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(after, model.hidden(tokens)[:, 5:], rtol=1e-4, atol=1e-4)


def test_watching_changes_no_bit_of_logits_and_gradients_and_draws_no_random_numbers(model):
    random, results = torch.get_rng_state(), []
    for capture in (nullcontext([]), captured_attention(model)):
        torch.set_rng_state(random)
        with capture as captured:
            logits = model(some_tokens())
        gradients = torch.autograd.grad(logits.square().sum(), list(model.blocks.parameters()))
        results.append((logits, *gradients, torch.get_rng_state()))
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))
    assert len(captured) == LAYERS
    assert not any(weights.requires_grad for weights in captured)
    attention_weights(model, some_tokens())
    assert torch.equal(torch.get_rng_state(), results[0][-1])
