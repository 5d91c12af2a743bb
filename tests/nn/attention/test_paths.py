"""The laws of weights and scores, for all attentions: asking for the weights changes nothing, and
they are what the equation says."""

import math

import pytest
import torch
from attention_layers import (
    IN_ATTENTION,
    MASKS,
    attention,
    by_path,
    encoding,
    every_attention,
    every_pair,
    past,
    some_input,
    some_mask,
)

BF16_ROUNDING = torch.finfo(torch.bfloat16).eps / 2


@every_pair
def test_weights_change_neither_output_nor_gradients(name, position):
    for causal, lengths in [(True, [9]), (True, [4, 7, 7]), (False, [7, 4, 4])]:
        if position is not None and lengths[0] > lengths[-1]:
            continue
        options = {"qkv_bias": True, "out_bias": True, "qk_norm": position is None}
        layer = attention(name, causal=causal, **options)
        place = encoding(position, layer)
        inputs = [some_input(n, seed=i).requires_grad_() for i, n in enumerate(lengths)]
        wanted = [*inputs, *layer.parameters(), *(place.parameters() if place else [])]
        for kind in (None, *MASKS):
            mask = None if kind is None else some_mask(kind, layer.heads, lengths[0], lengths[-1])
            results = []
            for weights in (False, True):
                out = by_path(layer, *inputs, weights=weights, mask=mask, position=place)
                results.append((out, *torch.autograd.grad(out.sin().sum(), wanted)))
            torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)


@every_attention
def test_weights_are_those_before_dropout(name):
    layer, x = attention(name, dropout=0.5), some_input()
    for dtype in (torch.float32, torch.bfloat16):
        layer, x = layer.to(dtype), x.to(dtype)
        training, evaluation = (layer.train(mode)(x, weights=True)[1] for mode in (True, False))
        assert torch.equal(training, evaluation)
        assert training.dtype == torch.float32


@every_attention
def test_dropout_acts_in_training_alone_and_keeps_the_mean(name):
    for weights in (False, True):
        layer, x = attention(name, dropout=0.5).eval(), some_input(4, batch=1)
        expected = by_path(layer, x, weights=weights)
        assert torch.equal(expected, by_path(attention(name), x, weights=weights))
        torch.manual_seed(0)
        with torch.no_grad():
            many = by_path(layer.train(), x.expand(1_000, 4, -1), weights=weights)
        assert not torch.equal(many[0], many[1])
        off = (many.mean(dim=0) - expected[0]).abs()
        assert (off < 5 * many.std(dim=0) / 1_000**0.5).all()


@pytest.mark.parametrize(
    ("name", "position", "autocast"),
    [
        *(("multi_head", position, True) for position in (None, *IN_ATTENTION)),
        ("multi_head", "relative", False),
        *(("grouped_query", "relative", True), ("stacked_heads", "relative", True)),
    ],
)
@torch.no_grad()
def test_at_1024_tokens_in_bf16_both_paths_differ_by_the_rounding_of_outputs(
    name, position, autocast
):
    """Queries look far back: what a bias takes from far keys, the dot products give back."""
    length = 1024
    layer = attention(name, block_size=length, out_proj=False, out_dim=24)
    place = encoding(position, layer, block_size=length)
    x = some_input(length, batch=1)
    x[..., 0] = 8 * torch.linspace(1, -1, length)  # early keys have large dot products
    if position == "alibi":
        place.slopes.copy_(torch.linspace(0.01, 0.05, layer.heads))
    elif position is not None and position != "rotary":
        for parameter in place.parameters():
            parameter.mul_(30)
    if not autocast:
        layer, x = layer.bfloat16(), x.bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        fused, explicit = (by_path(layer, x, position=place, weights=w) for w in (False, True))
    assert fused.dtype == explicit.dtype == torch.bfloat16
    apart = (fused.float() - explicit.float()).norm()
    assert apart < 2 * BF16_ROUNDING * explicit.float().norm()


# --- scores ---


@every_attention
def test_scale_multiplies_the_scores_and_a_bias_is_added_to_them(name):
    x = some_input()
    _, plain = attention(name, scale=1.0)(x, weights=True)
    layer = attention(name, scale=2.0)
    for position in ["alibi", "relative", "head_bias"]:
        place = encoding(position, layer)
        scores = (2 * plain.log() + place.bias(9, 9)).masked_fill(~past(9), -math.inf)
        _, seen = layer(x, position=place, weights=True)
        torch.testing.assert_close(seen, scores.softmax(-1), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("kv_heads", [6, 2, 1])
@pytest.mark.parametrize("causal", [False, True])
def test_additive_scores_are_w_times_tanh_of_the_sum(kv_heads, causal):
    layer = attention("additive", kv_heads=kv_heads, qkv_bias=True, causal=causal)
    x = some_input(5)
    parts = layer.qkv(x).unflatten(-1, (-1, 4)).split([6, kv_heads, kv_heads], dim=2)
    q, k, v = (part.repeat_interleave(6 // part.size(2), dim=2) for part in parts)
    hidden = torch.tanh(q[:, :, None] + k[:, None])  # (B, T, S, H, D)
    scores = torch.einsum("btshd,hd->bhts", hidden, layer.w)
    expected = scores.masked_fill(~past(5) & causal, -math.inf).softmax(-1)
    mixed = torch.einsum("bhts,bshd->bthd", expected, v).flatten(2)
    out, seen = layer(x, weights=True)
    torch.testing.assert_close(seen, expected)
    torch.testing.assert_close(out, layer.out_proj(mixed), rtol=1e-4, atol=1e-5)
