"""The laws of the two paths, for all attentions: asking for the weights changes nothing, and the
weights are shares."""

import copy
import itertools

import pytest
import torch
from attention_layers import (
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


def outputs_and_gradients(layer, inputs, modules, **options) -> list:
    """Of each path, the output and the gradients of inputs and parameters."""
    wanted = [*inputs, *(parameter for part in modules for parameter in part.parameters())]
    results = []
    for weights in (False, True):
        out = by_path(layer, *inputs, weights=weights, **options)
        weighting = torch.randn(out.shape, generator=torch.Generator().manual_seed(3))
        gradients = torch.autograd.grad((out * weighting).sum(), wanted)
        results.append((out, *gradients))
    return results


@every_pair
def test_weights_change_neither_output_nor_gradients(name, position):
    layer = attention(name, qkv_bias=True, out_bias=True, qk_norm=position is None)
    place = encoding(position, layer)
    x = some_input().requires_grad_()
    modules = [layer] if place is None else [layer, place]
    for kind, queries in ((None, 9), (None, 4), ("padding", 4), ("per_head", 9)):
        inputs = [x] if queries == 9 else [some_input(queries, seed=1).requires_grad_(), x]
        mask = None if kind is None else some_mask(kind, layer.heads, queries)
        results = outputs_and_gradients(layer, inputs, modules, mask=mask, position=place)
        for fused, explicit in zip(*results, strict=True):
            torch.testing.assert_close(fused, explicit, rtol=1e-4, atol=3e-5)


@every_attention
@pytest.mark.parametrize("causal", [False, True])
def test_weights_change_nothing_in_cross_attention_under_any_mask(name, causal):
    layer = attention(name, causal=causal)
    lengths = (4, 7, 7) if causal else (7, 4, 4)
    inputs = [some_input(n, seed=i).requires_grad_() for i, n in enumerate(lengths)]
    for kind in (None, *MASKS):
        mask = None if kind is None else some_mask(kind, layer.heads, *lengths[:2])
        results = outputs_and_gradients(layer, inputs, [layer], mask=mask)
        for fused, explicit in zip(*results, strict=True):
            torch.testing.assert_close(fused, explicit, rtol=1e-4, atol=3e-5)


@every_pair
def test_in_bf16_both_paths_are_a_few_roundings_from_fp64(name, position):
    """Four: queries, keys and scores, here of size 2, are rounded, which is twice as much of the
    weights; weights, values, sums and the way out are rounded as well. Up as often as down."""
    for autocast in [False, True]:
        layer, x = attention(name, qk_norm=position is None), some_input()
        place = encoding(position, layer)
        if not autocast:
            layer, x = layer.bfloat16(), x.bfloat16()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            outs = [by_path(layer, x, position=place, weights=weights) for weights in (False, True)]
        exact_layer, exact_place = (copy.deepcopy(part) for part in (layer, place))
        if place is not None:
            exact_place.double()
        exact = by_path(exact_layer.double(), x.double(), position=exact_place, weights=True)
        for out in outs:
            assert out.dtype == torch.bfloat16
            assert (out - exact).norm() < 4 * BF16_ROUNDING * exact.norm()


@every_attention
def test_rows_of_weights_are_shares_and_what_is_hidden_is_exactly_zero(name):
    layer = attention(name, dropout=0.5).train()
    for dtype, kind in itertools.product((torch.float32, torch.bfloat16), (None, *MASKS)):
        layer = layer.to(dtype)
        mask = None if kind is None else some_mask(kind, layer.heads)
        out, seen = layer(some_input().to(dtype), mask=mask, weights=True)
        visible = past(9) if mask is None else past(9) & mask
        assert out.dtype == dtype
        assert seen.dtype == torch.float32
        assert seen.shape == (2, layer.heads, 9, 9)
        assert (seen >= 0).all()
        assert (seen[~visible.expand_as(seen)] == 0).all()
        torch.testing.assert_close(seen.sum(dim=-1), torch.ones(2, layer.heads, 9))


@every_pair
def test_explain_has_weights_scores_and_the_outputs_that_out_proj_maps(name, position):
    layer, x = attention(name, dropout=0.5).train(), some_input()
    place = encoding(position, layer)
    random = torch.get_rng_state()
    mask = some_mask("per_head", layer.heads)
    explained = layer.compute_heads(x, mask=mask, position=place)
    assert torch.equal(torch.get_rng_state(), random)
    out, weights = layer.eval()(x, mask=mask, position=place, weights=True)
    assert torch.equal(explained.weights, weights)
    assert torch.equal(layer.out_proj(explained.outputs), out)
    masked = explained.scores.masked_fill(~(past(9) & mask), -torch.inf)
    torch.testing.assert_close(masked.softmax(dim=-1), weights)
    alone = layer.compute_heads(x[0], mask=mask[:1], position=place)
    for part, whole in zip(alone, explained, strict=True):
        torch.testing.assert_close(part, whole[0], rtol=1e-4, atol=1e-5)


@every_attention
def test_dropout_acts_in_training_alone(name):
    for weights in (False, True):
        layer, x = attention(name, dropout=0.5), some_input()
        first, second = (by_path(layer.train(), x, weights=weights) for _ in range(2))
        assert not torch.equal(first, second)
        first, second = (by_path(layer.eval(), x, weights=weights) for _ in range(2))
        assert torch.equal(first, second)
        assert torch.equal(first, by_path(attention(name), x, weights=weights))


@every_attention
def test_weights_are_those_before_dropout(name):
    layer, x = attention(name, dropout=0.5), some_input()
    training, evaluation = (layer.train(mode)(x, weights=True)[1] for mode in (True, False))
    assert torch.equal(training, evaluation)


@every_attention
def test_dropout_keeps_the_mean(name):
    for weights in (False, True):
        layer, x = attention(name, dropout=0.5), some_input(4, batch=1)
        torch.manual_seed(0)
        with torch.no_grad():
            expected = layer.eval()(x)[0]
            many = by_path(layer.train(), x.expand(3_000, 4, -1), weights=weights)
        off = (many.mean(dim=0) - expected).abs()
        assert (off < 5 * many.std(dim=0) / 3_000**0.5).all()


FAR = [None, "rotary", "alibi", "relative", "head_bias"]


@pytest.mark.parametrize(
    ("name", "position", "autocast"),
    [
        *(("multi_head", position, autocast) for position in FAR for autocast in (False, True)),
        *(("grouped_query", position, True) for position in (None, "relative")),
        *(("stacked_heads", position, True) for position in (None, "relative")),
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
