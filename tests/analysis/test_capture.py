"""The laws of watching: the weights are the model's own, and the model never learns of it."""

import pytest
import torch
from torch import Tensor, nn

from headscope.analysis.capture import attention_weights, captured_attention
from headscope.nn import GPT
from headscope.nn.attention import attend_explicit, attend_fused

LAYERS, HEADS = 3, 2


@pytest.fixture
def model() -> GPT:
    torch.manual_seed(0)
    model = GPT(vocab_size=11, block_size=9, embed_dim=8, layers=LAYERS, heads=HEADS, dropout=0.5)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight)  # attention far from even
    return model.train()


def some_tokens() -> Tensor:
    return torch.randint(11, (4, 7), generator=torch.Generator().manual_seed(1))


def test_weights_are_those_of_every_layer_computed_by_hand(model):
    read = []
    for block in model.blocks:
        block.attention_norm.register_forward_hook(lambda *call: read.append(call[-1]))
    weights = attention_weights(model, some_tokens())
    assert weights.shape == (LAYERS, 4, HEADS, 7, 7)
    for layer, (block, x) in enumerate(zip(model.blocks, read, strict=True)):
        queries, keys, _ = block.attention.qkv(x).chunk(3, dim=-1)
        for head in range(HEADS):
            share = slice(4 * head, 4 * head + 4)
            scores = queries[..., share] @ keys[..., share].mT / 2  # sqrt(4)
            scores[:, ~torch.ones(7, 7, dtype=torch.bool).tril()] = -torch.inf
            torch.testing.assert_close(weights[layer, :, head], scores.softmax(-1))


def test_rows_sum_to_one_and_the_future_is_exactly_zero(model):
    weights = attention_weights(model, some_tokens())
    assert (weights.triu(1) == 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(LAYERS, 4, HEADS, 7))
    assert not weights.requires_grad


def test_watching_changes_no_logits(model):
    model.eval()
    tokens = some_tokens()
    before = model(tokens)
    with captured_attention(model) as captured:
        watched = model(tokens)
    assert len(captured) == LAYERS
    torch.testing.assert_close(watched, before)
    assert torch.equal(model(tokens), before)


def test_watching_in_the_middle_of_training_takes_no_random_numbers(model):
    random = torch.get_rng_state()
    expected = model(some_tokens())
    torch.set_rng_state(random)
    attention_weights(model, some_tokens())
    assert torch.equal(torch.get_rng_state(), random)
    assert torch.equal(model(some_tokens()), expected)


def test_weights_are_without_dropout(model):
    weights = attention_weights(model, some_tokens())
    assert torch.equal(attention_weights(model, some_tokens()), weights)
    assert torch.equal(attention_weights(model.eval(), some_tokens()), weights)


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_comes_back(model, training):
    model.train(training)
    attention_weights(model, some_tokens())
    assert all(module.training == training for module in model.modules())


@pytest.mark.parametrize("training", [True, False])
def test_all_comes_back_after_an_error(model, training):
    model.train(training)
    own = [attend_fused, attend_explicit, attend_fused]
    for block, attend in zip(model.blocks, own, strict=True):
        block.attention.attend = attend
    with pytest.raises(ValueError, match="10 tokens"):
        attention_weights(model, torch.zeros(1, 10, dtype=torch.long))
    with pytest.raises(KeyboardInterrupt), captured_attention(model):
        raise KeyboardInterrupt
    assert [block.attention.attend for block in model.blocks] == own
    assert all(module.training == training for module in model.modules())


def test_a_watcher_may_be_watched(model):
    model.eval()
    with captured_attention(model) as outer:
        with captured_attention(model) as inner:
            model(some_tokens())
        model(some_tokens())
    assert len(inner) == len(outer) == LAYERS
    assert torch.equal(torch.stack(inner), torch.stack(outer))
    assert all(block.attention.attend is attend_fused for block in model.blocks)


def test_gradients_flow_while_it_is_watched(model):
    model.eval()
    with captured_attention(model) as captured:
        model(some_tokens()).sum().backward()
    assert model.blocks[0].attention.qkv.weight.grad.abs().sum() > 0
    assert not any(weights.requires_grad for weights in captured)
