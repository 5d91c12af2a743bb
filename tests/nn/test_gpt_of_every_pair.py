"""The laws of the whole model, over every pair of attention and position."""

import math
from contextlib import nullcontext

import pytest
import torch
from choices import every_pair
from small_gpt import fresh, gpt, loss_of, some_tokens, variant

from headscope.nn import Position, Sinusoidal
from headscope.nn.capture import captured_attention


@every_pair
def test_a_changed_token_changes_the_logits_from_there_on_and_none_before(pair):
    model, tokens = gpt(**variant(pair)), some_tokens(batch=1)
    changed = tokens + torch.eye(10, dtype=torch.long)  # another token in each row
    change = (model(changed % 11) - model(tokens)).abs().amax(dim=-1)
    past = torch.ones(10, 10, dtype=torch.bool).tril(-1)
    assert change[past].max() < 1e-5
    assert change[~past].min() > 1e-4


@every_pair
def test_every_layer_knows_the_position(pair):
    model, calls = gpt(**variant(pair)), []
    hooks = [
        block.register_forward_hook(lambda *call: calls.append(call)) for block in model.blocks
    ]
    model(some_tokens())
    for hook in hooks:
        hook.remove()
    rotates = model.position.rotate.__func__ is not Position.rotate
    changes_attention = rotates or model.position.bias(10, 10) is not None
    for block, (x, *_), out in calls:
        assert torch.equal(block(x, model.position), out)
        assert torch.equal(block(x), out) == (not changes_attention)


@every_pair
def test_in_bf16_logits_are_near_those_of_fp32(pair):
    model, tokens = gpt(**variant(pair)), some_tokens(batch=4)
    exact = model(tokens)
    mixed = torch.autocast("cpu", dtype=torch.bfloat16)
    for precision, most in ((mixed, 0.03), (nullcontext(), 0.1 if pair[1] == "index" else 0.03)):
        with precision:
            fused = model(tokens)
            with captured_attention(model):
                explicit = model(tokens)
        for logits in (fused, explicit):
            assert logits.dtype == torch.bfloat16
            assert (logits - exact).norm() / exact.norm() < most
        model.bfloat16()


@every_pair
def test_gradients_reach_every_parameter(pair):
    model = gpt(**variant(pair))
    loss_of(model, some_tokens(batch=8)).backward()
    for name, parameter in model.named_parameters():
        # A bias of keys alone adds the same to all scores of a query: softmax does not see it.
        if not name.endswith(".key.bias"):
            assert parameter.grad is not None, name
            assert parameter.grad.abs().max() > 1e-5, name


@every_pair
def test_a_fresh_model_knows_nothing(pair):
    sizes = {"vocab_size": 1000, "block_size": 32, "embed_dim": 64}
    tokens = torch.randint(1000, (4, 33))
    options = variant(pair)
    if options["scale_embedding"]:
        options["tied_head"] = False  # see the next test
    loss = loss_of(fresh(**sizes, **options), tokens)
    assert loss.item() == pytest.approx(math.log(1000), abs=0.1)


def test_a_fresh_model_of_scaled_embeddings_expects_every_token_again():
    tokens = torch.randint(1000, (4, 32))
    sizes = {"vocab_size": 1000, "block_size": 32, "embed_dim": 64}
    logits = fresh(**sizes, position=Sinusoidal, scale_embedding=True)(tokens)
    assert torch.equal(logits.argmax(-1), tokens)


@every_pair
def test_a_state_dict_holds_parameters_alone(pair):
    model = fresh(**variant(pair))
    own = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    assert set(model.state_dict()) == own
