"""The laws of the whole model, and of its norms and embeddings."""

import math
from contextlib import nullcontext
from itertools import product

import pytest
import torch
from choices import every_pair, every_part, parts
from small_gpt import fresh, gpt, loss_of, make_gpt, some_tokens, training_step, variant

from headscope.errors import UserError
from headscope.nn import LayerNorm, Learned, RMSNorm
from headscope.nn.capture import capture
from headscope.nn.ngrams import MULTIPLIER, PRIME


def test_parameters_and_the_spread_of_a_scaled_embedding():
    sizes = {"vocab_size": 50257, "block_size": 1024, "embed_dim": 768, "layers": 12}
    with torch.device("meta"):
        gpt2 = make_gpt(**sizes, heads=12, position=Learned, bias=True, qkv_bias=True)
    assert gpt2.parameter_count() == 124_439_808
    started = fresh(scale_embedding=True).embedding.weight.std().item()
    assert started == pytest.approx(2 / 16, rel=0.2)


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
    sizes = {"vocab_size": 500, "block_size": 20, "embed_dim": 96, "layers": layers, "ngrams": 3}
    options = parts(*pair, qk_norm=True) | {"bias": True, "qkv_bias": True, "tied_head": False}
    model = fresh(**sizes, **options)
    for name, parameter in model.named_parameters():
        if name.endswith(".w"):
            assert parameter.std().item() == pytest.approx(24**-0.5, rel=0.25), name
        elif "ngram" in name or (pair[1] == "head_bias" and name == "position.table"):
            assert not parameter.any()  # a new model ignores n-grams
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
    for norm, value in product((LayerNorm, RMSNorm), (0.0, -1.0, math.inf, math.nan)):
        with pytest.raises(UserError, match="eps="):
            norm(embed_dim=2, eps=value)


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


@every_pair
def test_it_overfits_one_batch(pair):
    """Random texts that begin with different tokens: what follows depends on the whole text."""
    options = {"embed_dim": 32, "norm": RMSNorm, "scale_embedding": True, "tied_head": False}
    model, tokens = fresh(**parts(*pair), **options), some_tokens(11, batch=8)
    tokens[:, 0] = torch.arange(8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0)
    for _ in range(300):
        optimizer.zero_grad()
        loss = loss_of(model, tokens)
        if loss < 0.1:
            return
        loss.backward()
        optimizer.step()
    pytest.fail(f"the loss is {float(loss):.2f}")


# --- its parts ---


def test_each_ngram_adds_the_embedding_of_its_hash():
    layer = gpt(ngrams=4, ngram_buckets=64).ngram_embedding
    embedded = layer(torch.zeros(2, 6, 16), some_tokens(6))
    for row, tokens in enumerate(some_tokens(6).tolist()):
        for last in range(len(tokens)):
            expected, key = torch.zeros(16), tokens[last]
            for before, table in zip(reversed(tokens[:last]), layer.tables, strict=False):
                key = (key * MULTIPLIER + before) % PRIME
                expected = expected + table.weight[key % 64]
            torch.testing.assert_close(embedded[row, last], expected)


def test_a_cap_bounds_logits_in_float32():
    model, x = gpt(logit_cap=0.5).bfloat16(), torch.randn(2, 3, 16).bfloat16()
    capped, model.logit_cap = model.unembed(x), None
    plain = model.unembed(x).float()
    assert plain.abs().max() > 1
    assert torch.equal(capped, 0.5 * torch.tanh(plain / 0.5))


def test_a_model_refuses_what_are_no_tokens():
    model = gpt()
    empty = [torch.zeros(shape, dtype=torch.long) for shape in ((2, 0), (0, 3), (2, 3, 1))]
    for tokens in (*empty, torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.bool)):
        for call in (model, model.hidden, model.next_logits, model.embed):
            with pytest.raises(UserError, match=rf"{tokens.dtype}.*integers|torch\.int64 \(B, T\)"):
                call(tokens)


def test_a_model_takes_what_a_tokenizer_returns():
    model, tokens = gpt(), torch.tensor([[3, 1, 4, 1, 5]])
    expected = model(tokens)
    encoded = tokens[0].numpy().astype("uint32")
    encoded.flags.writeable = False  # as the byte tokenizer may return them
    for given in (encoded, torch.tensor(encoded.copy()), tokens[0], tokens[0].tolist()):
        assert torch.equal(model(given), expected[0])
    assert torch.equal(model(encoded[None]), expected)


# --- activation checkpointing ---

TOKENS = some_tokens()
TOKENS[:, [4, 7]] = 10  # the end-of-text token


@every_part
def test_activation_checkpointing_gives_bit_identical_gradients(pair):
    for options in ({"document_mask": True, "end_of_text": 10}, {"dropout": 0.3}):
        model = gpt(**variant(pair), **options)
        for precision in (nullcontext(), torch.autocast("cpu", torch.bfloat16)):
            with precision:
                stored, recomputed = (
                    training_step(model, TOKENS, checkpointing=on) for on in (False, True)
                )
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
