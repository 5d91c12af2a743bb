"""The laws of heads and scores, for all attentions."""

import math

import pytest
import torch
from attention_layers import (
    attention,
    by_path,
    encoding,
    every_attention,
    past,
    some_input,
    some_mask,
)
from choices import ATTENTIONS
from torch import nn

from headscope.nn import StackedHeads


def reordered(linear: nn.Linear, rows: list[int]) -> None:
    for parameter in linear.parameters():
        parameter.data = parameter.data[rows]


def shuffle_heads(layer) -> list[int]:
    """Groups of heads change places, and heads within a group; returns the new order."""
    group = layer.heads // layer.kv_heads
    groups = [*range(layer.kv_heads)]
    groups = groups[-2:] + groups[:-2]
    order = [head for g in groups for head in reversed(range(g * group, (g + 1) * group))]

    def rows(heads: list[int], start: int = 0) -> list[int]:
        return [(start + h) * layer.head_dim + i for h in heads for i in range(layer.head_dim)]

    if isinstance(layer, StackedHeads):
        layer.stack = nn.ModuleList(layer.stack[head] for head in order)
    else:
        first_value = layer.heads + layer.kv_heads
        reordered(layer.qkv, rows(order) + rows(groups, layer.heads) + rows(groups, first_value))
        if hasattr(layer, "w"):
            layer.w.data = layer.w.data[order]
    layer.out_proj.weight.data = layer.out_proj.weight.data[:, rows(order)]
    return order


@pytest.mark.parametrize(
    ("name", "kv_heads"),
    [
        *((name, {}) for name in ATTENTIONS),
        ("grouped_query", {"kv_heads": 3}),
        ("additive", {"kv_heads": 2}),
    ],
)
def test_the_order_of_heads_means_nothing(name, kv_heads):
    for masked in [False, True]:
        options = {"qkv_bias": True, "out_bias": True} | kv_heads
        layer, shuffled = attention(name, **options), attention(name, **options)
        order = shuffle_heads(shuffled)
        mask = some_mask("per_head", layer.heads) if masked else None
        out, seen = layer(some_input(), mask=mask, weights=True)
        for weights in (False, True):
            got = by_path(
                shuffled, some_input(), mask=mask[:, order] if masked else None, weights=weights
            )
            torch.testing.assert_close(got, out, rtol=1e-4, atol=1e-5)
        _, got = shuffled(some_input(), mask=mask[:, order] if masked else None, weights=True)
        torch.testing.assert_close(got, seen[:, order], rtol=1e-4, atol=1e-6)


@every_attention
def test_scale_multiplies_the_scores(name):
    x = some_input()
    _, plain = attention(name, scale=1.0)(x, weights=True)
    for scale in (0.1, 2.0):
        out, seen = attention(name, scale=scale)(x, weights=True)
        expected = (scale * plain.log()).softmax(dim=-1)
        torch.testing.assert_close(seen, expected, rtol=1e-3, atol=1e-6)
        torch.testing.assert_close(attention(name, scale=scale)(x), out, rtol=1e-4, atol=1e-5)


@every_attention
def test_scale_is_that_of_the_paper_unless_given(name):
    layer, x = attention(name, head_dim=5), some_input()
    scale = 1.0 if name == "additive" else 1 / math.sqrt(5)
    assert layer.scale == pytest.approx(scale)
    written_out = attention(name, head_dim=5, scale=scale)
    for weights in (False, True):
        out, expected = (by_path(part, x, weights=weights) for part in (layer, written_out))
        torch.testing.assert_close(out, expected)


@every_attention
def test_qk_norm_makes_scores_blind_to_the_size_of_queries_and_of_keys(name):
    for weights in (False, True):
        layer, plain, x = attention(name, qk_norm=True), attention(name), some_input()
        expected = by_path(layer, x, x, x, weights=weights)
        for query, key in ((10 * x, x), (x, 10 * x), (10 * x, 10 * x)):
            out = by_path(layer, query, key, x, weights=weights)
            torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
            assert (by_path(plain, query, key, x, weights=weights) - plain(x)).abs().max() > 1e-2


@every_attention
def test_qk_norm_is_root_mean_square_with_a_gain_for_each_number(name):
    layer, x = attention(name, qk_norm=True, scale=1.0), some_input()
    _, seen = layer(x, weights=True)
    plain = attention(name, qk_norm=True, scale=1.0)
    norms = [part for key, part in plain.named_modules() if key.endswith(("q_norm", "k_norm"))]
    assert len(norms) >= 2
    for norm in norms:
        gain = norm.weight
        assert gain.shape == (layer.head_dim,)
        norm.forward = lambda y, gain=gain: gain * y / y.square().mean(-1, True).sqrt()
    torch.testing.assert_close(plain(x, weights=True)[1], seen, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("kv_heads", [6, 2, 1])
@pytest.mark.parametrize("causal", [False, True])
def test_additive_scores_are_w_times_tanh_of_the_sum_by_hand(kv_heads, causal):
    for scale in [None, 0.5]:
        layer = attention("additive", kv_heads=kv_heads, scale=scale, qkv_bias=True, causal=causal)
        x = some_input(5)
        out, seen = layer(x, weights=True)
        q, k, v = layer.qkv(x).split([24, 4 * kv_heads, 4 * kv_heads], dim=-1)
        scores = torch.full((2, 6, 5, 5), -math.inf)
        mixed = torch.zeros(2, 5, 24)
        for b in range(2):
            for head in range(6):
                own = slice(4 * head, 4 * head + 4)
                group = head // (6 // kv_heads)
                shared = slice(4 * group, 4 * group + 4)
                for t in range(5):
                    for s in range(t + 1 if causal else 5):
                        hidden = torch.tanh(q[b, t, own] + k[b, s, shared])
                        scores[b, head, t, s] = (scale or 1.0) * layer.w[head] @ hidden
                    mixed[b, t, own] = scores[b, head, t].softmax(0) @ v[b, :, shared]
        torch.testing.assert_close(seen, scores.softmax(-1))
        torch.testing.assert_close(out, layer.out_proj(mixed), rtol=1e-4, atol=1e-5)


@every_attention
def test_a_bias_is_added_to_scaled_scores(name):
    for position in ["alibi", "relative", "head_bias"]:
        layer, x = attention(name, scale=0.3), some_input()
        place = encoding(position, layer)
        _, plain = layer(x, weights=True)
        _, seen = layer(x, position=place, weights=True)
        expected = (plain.log() + place.bias(9, 9)).masked_fill(~past(9), -math.inf).softmax(-1)
        torch.testing.assert_close(seen, expected, rtol=1e-3, atol=1e-6)
