"""The laws of masks, for all attentions: which keys a query can see, that nothing else depends on
the order of the tokens, and that a mask only hides keys."""

import itertools
import re
from functools import partial

import pytest
import torch
from attention_layers import (
    BATCH,
    BLOCK,
    MASKS,
    WIDTH,
    attention,
    by_path,
    encoding,
    every_attention,
    every_pair,
    past,
    some_input,
    some_mask,
)
from torch import Tensor

from headscope.nn import mask_from_padding, mask_per_sequence

LENGTH = 6


def reach(run, x: Tensor) -> Tensor:
    """Which inputs (B, S) each output of run(x) (B, T, O) gets gradient from: (B, T, B, S)."""
    out = run(x.requires_grad_())
    rows = [
        torch.autograd.grad(row.sum(), x, retain_graph=True)[0].ne(0).any(dim=-1)
        for row in out.flatten(0, 1)
    ]
    return torch.stack(rows).unflatten(0, out.shape[:2])


def within_each_sequence(visible: Tensor) -> Tensor:
    """visible (T, S) in every sequence, and nothing from one to another: (B, T, B, S)."""
    return torch.eye(BATCH, dtype=torch.bool)[:, None, :, None] & visible[:, None]


@every_pair
def test_gradient_comes_from_itself_and_all_before_and_never_from_the_future(name, position):
    layer = attention(name)
    place = encoding(position, layer)
    for weights in (False, True):
        run = partial(by_path, layer, weights=weights, position=place)
        seen = reach(run, some_input(LENGTH))
        assert torch.equal(seen, within_each_sequence(past(LENGTH)))


@every_attention
def test_the_value_of_every_key_up_to_itself_reaches_a_query_and_none_after(name):
    layer, x, value = attention(name), some_input(LENGTH), some_input(LENGTH, seed=1)
    for weights, queries in itertools.product((False, True), (2, LENGTH)):
        run = partial(by_path, layer, x[:, -queries:], x, weights=weights)
        assert torch.equal(reach(run, value), within_each_sequence(past(queries, LENGTH)))


@every_attention
def test_without_causal_gradient_comes_from_everywhere(name):
    layer = attention(name, causal=False)
    for weights in (False, True):
        seen = reach(partial(by_path, layer, weights=weights), some_input(LENGTH))
        assert torch.equal(seen, within_each_sequence(torch.ones(LENGTH, LENGTH, dtype=torch.bool)))


@every_pair
def test_fewer_queries_than_keys_are_the_last_rows_of_the_whole(name, position):
    for causal in [False, True]:
        layer, x = attention(name, causal=causal), some_input()
        place = encoding(position, layer)
        whole, whole_weights = layer(x, position=place, weights=True)
        for queries in (1, 4, 8):
            inputs = (x[:, -queries:], x)
            out, weights = layer(*inputs, position=place, weights=True)
            for last in (out, layer(*inputs, position=place)):
                torch.testing.assert_close(last, whole[:, -queries:], rtol=1e-4, atol=1e-5)
            expected = whole_weights[:, :, -queries:]
            torch.testing.assert_close(weights, expected, rtol=1e-4, atol=1e-6)


@every_attention
def test_without_causal_the_order_of_keys_means_nothing_and_of_queries_as_much(name):
    for weights in (False, True):
        layer = attention(name, causal=False, block_size=None)
        for queries, keys in ((3, 8), (7, 4), (12, 20)):
            query, key, value = (some_input(n, seed=i) for i, n in enumerate((queries, keys, keys)))
            out = by_path(layer, query, key, value, weights=weights)
            assert out.shape == (BATCH, queries, WIDTH)
            shuffled = by_path(layer, query, key.roll(1, 1), value.roll(1, 1), weights=weights)
            torch.testing.assert_close(shuffled, out, rtol=1e-4, atol=1e-5)
            backwards = by_path(layer, query.flip(1), key, value, weights=weights)
            torch.testing.assert_close(backwards.flip(1), out, rtol=1e-4, atol=1e-5)
            mismatched = by_path(layer, query, key, value.roll(1, 1), weights=weights)
            assert (mismatched - out).abs().max() > 1e-2


# --- masks ---


@every_attention
def test_weights_under_a_mask_are_those_without_it_shared_among_what_it_shows(name):
    layer, x = attention(name), some_input()
    for kind in MASKS:
        mask = some_mask(kind, layer.heads)
        shown = layer(x, weights=True)[1] * mask
        expected = shown / shown.sum(dim=-1, keepdim=True)
        _, seen = layer(x, mask=mask, weights=True)
        torch.testing.assert_close(seen, expected, rtol=1e-4, atol=1e-6)


@every_attention
def test_an_axis_of_one_is_the_same_mask_for_all(name):
    for weights in (False, True):
        layer, x, key = attention(name, causal=False), some_input(4), some_input(5, seed=1)
        generator = torch.Generator().manual_seed(0)
        for axes in itertools.product((1, BATCH), (1, layer.heads), (1, 4)):
            mask = torch.rand(*axes, 5, generator=generator) < 0.6
            written_out = mask.expand(BATCH, layer.heads, 4, 5).clone()
            out = by_path(layer, x, key, mask=mask, weights=weights)
            expected = by_path(layer, x, key, mask=written_out, weights=weights)
            torch.testing.assert_close(out, expected)


@every_attention
def test_padding_is_as_if_it_were_not_there(name):
    for weights in (False, True):
        layer = attention(name, causal=False)
        query, key, value = some_input(3), some_input(7, seed=1), some_input(7, seed=2)
        real = torch.tensor([[1, 0, 1, 1, 0, 1, 0], [0, 0, 1, 1, 1, 1, 1]])
        mask = mask_from_padding(real)
        assert torch.equal(mask, mask_from_padding(real.bool()))
        out = by_path(layer, query, key, value, mask=mask, weights=weights)
        for sequence, keep in enumerate(real.bool()):
            alone = by_path(
                layer, query[sequence], key[sequence, keep], value[sequence, keep], weights=weights
            )
            torch.testing.assert_close(out[sequence], alone, rtol=1e-4, atol=1e-5)


@every_attention
@pytest.mark.parametrize(
    ("kind", "position", "weights"),
    [
        *(("queries_keys", None, False), ("per_head", None, True), ("padding", "relative", False)),
    ],
)
def test_a_query_that_may_look_nowhere_gets_zeros_and_disturbs_no_other(
    name, kind, position, weights
):
    layer, x = attention(name, out_proj=False), some_input().requires_grad_()
    place = encoding(position, layer)
    mask = some_mask(kind, layer.heads)
    blinded = {
        "queries_keys": (3,),
        "padding": (-1, ..., slice(0, 4)),  # before the text: four blind queries in a causal layer
    }.get(kind, (-1, -1, 3))
    mask[blinded] = False
    blind = ~(mask & past(BLOCK)).expand(BATCH, layer.heads, BLOCK, BLOCK).any(dim=-1)
    assert 0 < blind.sum() < blind.numel()
    wanted = [x, *layer.parameters()] + ([] if place is None else [*place.parameters()])
    options = {"position": place, "weights": weights}

    def heads_and_gradients(mask, of):
        out = by_path(layer, x, mask=mask, **options)
        heads = out.unflatten(-1, (layer.heads, -1)).transpose(1, 2)  # (B, H, T, D)
        weighting = torch.randn(heads.shape, generator=torch.Generator().manual_seed(3))
        loss = (heads * weighting)[of].sum()
        return heads[of], torch.autograd.grad(loss, wanted)

    heads, gradients = heads_and_gradients(mask, blind)
    assert (heads == 0).all()
    assert all((gradient == 0).all() for gradient in gradients)
    if weights:
        seen = layer(x, mask=mask, **options)[1]
        assert (seen[blind] == 0).all()
        torch.testing.assert_close(seen.sum(dim=-1), (~blind).float())

    heads, gradients = heads_and_gradients(mask, ~blind)
    expected, expected_gradients = heads_and_gradients(mask | blind[..., None], ~blind)
    torch.testing.assert_close(heads, expected)
    for gradient, other in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-4, atol=1e-5)


@every_attention
def test_a_text_of_nothing_but_padding_leaves_the_bias_of_the_way_out(name):
    for weights, dtype in [(False, torch.float32), (True, torch.float32), (False, torch.bfloat16)]:
        layer = attention(name, out_bias=True, qk_norm=True).to(dtype)
        x = some_input().to(dtype).requires_grad_()
        mask = mask_from_padding(torch.tensor([[True] * BLOCK, [False] * BLOCK]))
        out = by_path(layer, x, mask=mask, weights=weights)
        assert torch.equal(out[1], layer.out_proj.bias.expand_as(out[1]))
        with torch.autograd.set_detect_anomaly(True):  # not even in between
            gradients = torch.autograd.grad(out.sum(), [x, *layer.parameters()])
        assert all(gradient.isfinite().all() for gradient in gradients)


def test_masks_of_other_axes_are_refused_with_their_shape():
    for make, axes, shapes in (
        (mask_from_padding, "batch, keys", [(9,), (2, 1, 9), (2, 1, 1, 9)]),
        (mask_per_sequence, "batch, queries, keys", [(9,), (9, 9), (2, 1, 9, 9)]),
    ):
        for shape in shapes:
            with pytest.raises(ValueError, match=rf"{re.escape(str(shape))}.*\({axes}\)"):
                make(torch.ones(shape, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"float32.*boolean"):
        mask_from_padding(torch.ones(2, 9))
