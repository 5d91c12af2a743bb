"""The laws of the whole model."""

import math
from contextlib import nullcontext

import pytest
import torch
from choices import every_pair, every_part, parts
from small_gpt import fresh, gpt, loss_of, make_gpt, some_tokens, variant

from headscope.errors import UserError
from headscope.nn import GPT, Learned, Sinusoidal
from headscope.nn.capture import capture


def test_parameters_are_as_many_as_said():
    width, vocab, block, layers = 8, 5, 3, 4
    sizes = {"vocab_size": vocab, "block_size": block, "embed_dim": width, "layers": layers}
    plain = vocab * width + 12 * layers * width**2 + (2 * layers + 1) * width
    for options, more in (
        ({}, 0),
        ({"tied_head": False}, vocab * width),
        ({"position": Learned}, block * width),
        ({"qkv_bias": True}, 3 * layers * width),
        # of norms; of feed-forward layers and output projections
        ({"bias": True}, (2 * layers + 1) * width + (5 + 1) * layers * width),
    ):
        options = {"position": Sinusoidal} | options
        assert make_gpt(**sizes, heads=2, **options).parameter_count() == plain + more


def test_a_scaled_embedding_is_sqrt_of_the_width_times_as_large():
    started = fresh(scale_embedding=True).embedding.weight.std().item()
    assert started == pytest.approx(1 / math.sqrt(16), rel=0.2)
    plain, scaled = gpt(tied_head=False), gpt(tied_head=False, scale_embedding=True)
    scaled.load_state_dict(plain.state_dict())
    with torch.no_grad():
        scaled.embedding.weight /= math.sqrt(16)
    torch.testing.assert_close(plain(some_tokens()), scaled(some_tokens()))


def test_dropout_draws_anew_in_training_and_never_in_evaluation():
    model, tokens = gpt(dropout=0.3), some_tokens()
    torch.testing.assert_close(model(tokens), gpt()(tokens))
    model.train()
    assert not torch.equal(model(tokens), model(tokens))
    assert not torch.equal(model.embed(tokens), model.embed(tokens))
    block, x = model.blocks[0], torch.randn(2, 3, 16)
    block.attention.dropout = 0.0
    assert not torch.equal(block(x), block(x))


@every_part
def test_fresh_weights_have_the_spread_of_gpt_2(pair):
    layers = 3
    sizes = {"vocab_size": 500, "block_size": 20, "embed_dim": 96, "layers": layers}
    options = parts(*pair, qk_norm=True) | {"bias": True, "qkv_bias": True, "tied_head": False}
    model = fresh(**sizes, **options)
    for name, parameter in model.named_parameters():
        if name.endswith(".w"):
            assert parameter.std().item() == pytest.approx(24**-0.5, rel=0.25), name
        elif pair[1] == "head_bias" and name == "position.table":
            assert not parameter.any()
        elif parameter.dim() >= 2:
            residual = "out_proj" in name or "down_proj" in name
            expected = 0.02 / math.sqrt(2 * layers) if residual else 0.02
            assert parameter.std().item() == pytest.approx(expected, rel=0.15), name
            assert parameter.mean().item() == pytest.approx(0, abs=expected / 3), name
        else:
            assert (parameter == (1.0 if "norm" in name and "weight" in name else 0.0)).all()


def test_values_out_of_range_are_refused_by_name():
    wrong = {"dropout": (-0.1, 1.0, math.nan), "end_of_text": (-1, 11)}
    wrong |= {"logit_cap": (0.0, math.inf, math.nan), "ngram_buckets": (0,)}
    counts = ("vocab_size", "block_size", "embed_dim", "layers", "heads", "ff_dim", "ngrams")
    for key, values in (wrong | dict.fromkeys(counts, (0, -1))).items():
        for value in values:
            with pytest.raises(UserError, match=f"{key}={value}"):
                fresh(**{key: value})


@every_pair
def test_every_layer_knows_the_position(pair):
    model, calls = gpt(**variant(pair)), []
    for block in model.blocks:
        block.register_forward_hook(lambda *call: calls.append(call))
    model(some_tokens())
    for block, (x, *_), out in [*calls]:
        assert torch.equal(block(x, model.position), out)


@every_pair
def test_in_bf16_logits_are_near_those_of_fp32(pair):
    model, tokens = gpt(**variant(pair)), some_tokens(batch=4)
    exact = model(tokens)
    mixed = torch.autocast("cpu", dtype=torch.bfloat16)
    for precision, most in ((mixed, 0.03), (nullcontext(), 0.1 if pair[1] == "index" else 0.03)):
        with precision:
            fused = model(tokens)
            explicit = model.unembed(capture(model, tokens).residual[-1])
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


@every_part
def test_a_state_dict_holds_parameters_alone(pair):
    model = fresh(**variant(pair))
    own = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    assert set(model.state_dict()) == own


# --- activation checkpointing ---

TOKENS = some_tokens()
TOKENS[:, [4, 7]] = 10  # the end-of-text token


def step(model: GPT, *, checkpointing: bool) -> list[torch.Tensor]:
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
