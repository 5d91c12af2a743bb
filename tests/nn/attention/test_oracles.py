"""Attention against attention that others wrote, its variants and its two paths against one
another, and its weights and scores against the equation."""

import math

import pytest
import torch
from attention_layers import (
    BLOCK,
    IN_ATTENTION,
    MASKS,
    WIDTH,
    attention,
    by_path,
    encoding,
    every_attention,
    every_pair,
    far_from_zero,
    past,
    some_input,
    some_mask,
)
from torch import Tensor
from transformers import LlamaConfig, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention, Qwen3RotaryEmbedding

from headscope.nn import StackedHeads

OPTIONS = [
    *({}, {"qkv_bias": True}, {"qk_norm": True}, {"scale": 0.3}, {"head_dim": 10}),
    *({"heads": 5, "head_dim": 6}, {"out_dim": 7}, {"out_bias": True}, {"causal": False}),
]
OPTIONS += [{k: v for part in OPTIONS for k, v in part.items()}, {"out_proj": False}]


def same_on_both_paths(layer, inputs, expected, expected_weights, **options) -> None:
    out, weights = layer(*inputs, weights=True, **options)
    for got in (out, layer(*inputs, **options)):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(weights, expected_weights, rtol=1e-4, atol=2e-5)


def one_matrix(stacked: StackedHeads, kind: str) -> Tensor:
    """Weights, or biases, of all heads: queries, keys, values."""
    roles = ("query", "key", "value")
    parts = [getattr(head, role) for role in roles for head in stacked.stack]
    return torch.cat([getattr(part, kind) for part in parts])


@pytest.mark.parametrize(
    ("options", "kind", "position"),
    [
        ({}, None, None),
        *((options, "per_head", None) for options in OPTIONS),
        *(({"qkv_bias": True}, "queries_keys", position) for position in IN_ATTENTION),
    ],
    ids=str,
)
def test_multi_head_equals_heads_side_by_side(options, kind, position):
    stacked, layer = attention("stacked_heads", **options), attention("multi_head", **options)
    copied = {"qkv.weight": one_matrix(stacked, "weight")}
    if layer.qkv_bias:
        copied["qkv.bias"] = one_matrix(stacked, "bias")
    for key, parameter in stacked.out_proj.named_parameters():
        copied[f"out_proj.{key}"] = parameter
    if layer.qk_norm:
        for norm in ("q_norm", "k_norm"):
            copied[f"{norm}.weight"] = gains = getattr(stacked.stack[0], norm).weight
            for head in stacked.stack:
                getattr(head, norm).weight = gains
    layer.load_state_dict(copied)
    place = encoding(position, layer)
    for inputs in ([some_input()], [some_input(4), some_input(7, seed=1), some_input(7, seed=2)]):
        queries, keys = inputs[0].size(1), inputs[-1].size(1)
        mask = kind and some_mask(kind, layer.heads, queries, keys)
        expected, weights = stacked(*inputs, weights=True, mask=mask, position=place)
        same_on_both_paths(layer, inputs, expected, weights, mask=mask, position=place)


LLAMA = (4, LlamaConfig, LlamaAttention, LlamaRotaryEmbedding)
QWEN3 = (10, Qwen3Config, Qwen3Attention, Qwen3RotaryEmbedding)


@pytest.mark.parametrize(("length", "bias"), [(1, False), (9, True)])
@pytest.mark.parametrize("theirs", [LLAMA, QWEN3], ids=["llama", "qwen3"])
def test_equals_the_attention_of_llama_and_with_qk_norm_that_of_qwen3(theirs, length, bias):
    head_dim, make_config, make, make_rotary = theirs
    heads = {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": head_dim}
    sizes = {"hidden_size": WIDTH, "max_position_embeddings": BLOCK, "attention_bias": bias}
    config = make_config(**heads, **sizes, attn_implementation="eager")
    other = far_from_zero(make(config, layer_idx=0).eval())
    options = {"kv_heads": 2, "head_dim": head_dim, "qkv_bias": bias, "out_bias": bias}
    layer = attention("grouped_query", qk_norm=theirs is QWEN3, **options)
    weights, copied = other.state_dict(), {}
    for key in layer.state_dict():
        part, kind = key.split(".")
        names = ["q_proj", "k_proj", "v_proj"] if part == "qkv" else [part.replace("out", "o")]
        copied[key] = torch.cat([weights[f"{name}.{kind}"] for name in names])
    layer.load_state_dict(copied)
    x = some_input(length)
    cos_sin = make_rotary(config)(x, torch.arange(length)[None])
    mask = torch.zeros(length, length).masked_fill(~past(length), -torch.inf)[None, None]
    expected = other(x, position_embeddings=cos_sin, attention_mask=mask)
    same_on_both_paths(layer, [x], *expected, position=encoding("rotary", layer))


# --- the two paths ---

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
def test_at_1024_tokens_in_bf16_both_paths_differ_by_rounding(name, position, autocast):
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
