"""The laws of the whole model: positions, sizes, and what it computes."""

import math

import pytest
import torch
from choices import ATTENTIONS, POSITIONS, every_part, parts
from small_gpt import fresh, gpt, make_gpt, some_tokens

from headscope.nn import Learned, Sinusoidal, cache_bytes_per_token

every_attention = pytest.mark.parametrize("attention", ATTENTIONS)


# --- position ---


@pytest.mark.parametrize("position", POSITIONS)
def test_the_order_of_tokens_matters(position):
    """Without an encoding, the causal mask shows the order from the second layer on."""
    for layers in (1, 2):
        model = gpt(position=POSITIONS[position], layers=layers)
        logits = model(torch.tensor([[1, 2, 3], [2, 1, 3]]))[:, -1]
        change = (logits[0] - logits[1]).abs().max()
        unseen = layers == 1 and position in ("none", "index", "normalized")
        assert change < 1e-4 if unseen else change > 1e-2


def test_sequences_of_a_batch_do_not_see_each_other():
    model, tokens = gpt(), some_tokens(batch=4)
    torch.testing.assert_close(model(tokens)[2:3], model(tokens[2:3]))


# --- sizes ---


@pytest.mark.parametrize(("width", "vocab", "block", "layers"), [(8, 5, 3, 4), (32, 300, 64, 1)])
def test_parameters_are_as_many_as_said(width, vocab, block, layers):
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


@every_attention
def test_a_cache_holds_the_keys_and_values_of_every_layer(attention):
    keys = {"single_head": 1, "multi_query": 1, "grouped_query": 2}.get(attention, 4)
    for head_dim in [None, 4, 6]:
        model = gpt(**parts(attention, "none"), head_dim=head_dim)
        width = head_dim or (16 if attention == "single_head" else 4)
        assert cache_bytes_per_token(model) == 2 * 2 * keys * width * 4
        assert cache_bytes_per_token(model.bfloat16()) == 2 * 2 * keys * width * 2


def test_a_tied_head_is_the_embedding_itself():
    tied, untied = gpt(), gpt(tied_head=False)
    assert tied.head.weight.data_ptr() == tied.embedding.weight.data_ptr()
    assert untied.head.weight.data_ptr() != untied.embedding.weight.data_ptr()
    clone = fresh().eval()
    clone.load_state_dict(tied.state_dict())
    assert clone.head.weight.data_ptr() == clone.embedding.weight.data_ptr()
    assert torch.equal(clone(some_tokens()), tied(some_tokens()))


# --- what it computes ---


def test_a_scaled_embedding_is_sqrt_of_the_width_times_as_large():
    started = fresh(scale_embedding=True).embedding.weight.std().item()
    assert started == pytest.approx(1 / math.sqrt(16), rel=0.2)
    plain, scaled = gpt(), gpt(scale_embedding=True)
    scaled.load_state_dict(plain.state_dict())
    with torch.no_grad():
        scaled.embedding.weight /= math.sqrt(16)
    read = {}
    for model in (plain, scaled):
        model.position.register_forward_pre_hook(
            lambda module, arguments, model=model: read.update({model: arguments[0]})
        )
        model(some_tokens())
    torch.testing.assert_close(read[plain], read[scaled])


def test_dropout_draws_anew_in_training_and_never_in_evaluation():
    model, tokens = gpt(dropout=0.3), some_tokens()
    assert torch.equal(model(tokens), model(tokens))
    torch.testing.assert_close(model(tokens), gpt()(tokens))
    model.train()
    assert not torch.equal(model(tokens), model(tokens))
    sure = gpt(dropout=0.0).train()
    assert torch.equal(sure(tokens), sure(tokens))


# --- fresh weights ---


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
            expected = (
                0.02 / math.sqrt(2 * layers) if "_proj" in name and "up_proj" not in name else 0.02
            )
            assert parameter.std().item() == pytest.approx(expected, rel=0.15), name
            assert parameter.mean().item() == pytest.approx(0, abs=expected / 3), name
        else:
            assert (parameter == (1.0 if "norm" in name and "weight" in name else 0.0)).all()


# --- what is refused ---


def test_values_out_of_range_are_refused_by_name():
    wrong = {"dropout": (-0.1, 1.0, math.nan), "end_of_text": (-1, 11)}
    wrong |= dict.fromkeys(("vocab_size", "block_size", "embed_dim", "layers", "heads"), (0, -1))
    for key, values in wrong.items():
        for value in values:
            with pytest.raises(ValueError, match=f"{key}={value}"):
                fresh(**{key: value})
