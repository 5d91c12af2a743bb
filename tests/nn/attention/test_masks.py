"""The laws of masks, for all attentions: a mask hides, and does nothing else."""

import itertools
import re

import pytest
import torch
from attention_layers import (
    BATCH,
    BLOCK,
    MASKS,
    attention,
    by_path,
    encoding,
    every_attention,
    past,
    some_input,
    some_mask,
)
from choices import ATTENTIONS

from headscope.nn import mask_from_padding, mask_per_sequence


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
def test_a_mask_of_each_sequence_is_its_own(name):
    for weights in (False, True):
        layer, x = attention(name), some_input()
        masks = some_mask("per_sequence", layer.heads)[:, 0]
        out = by_path(layer, x, mask=mask_per_sequence(masks), weights=weights)
        for sequence, mask in enumerate(masks):
            alone = by_path(layer, x[sequence], mask=mask, weights=weights)
            torch.testing.assert_close(out[sequence], alone, rtol=1e-4, atol=1e-5)


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
def test_what_stands_in_padding_changes_nothing_for_real_tokens(name):
    for weights in (False, True):
        for causal in [False, True]:
            layer, x = attention(name, causal=causal), some_input()
            real = torch.ones(BATCH, BLOCK, dtype=torch.bool)
            real[0, :3] = False
            real[1, 5:] = False
            other = torch.where(real[..., None], x, 100 * some_input(seed=7))
            mask = mask_from_padding(real)
            out, changed = (by_path(layer, text, mask=mask, weights=weights) for text in (x, other))
            torch.testing.assert_close(changed[real], out[real], rtol=1e-5, atol=1e-6)
            assert changed.isfinite().all()


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


def test_a_mask_of_other_axes_or_another_type_is_refused():
    for name in ATTENTIONS:
        layer = attention(name)
        with pytest.raises(ValueError, match=r"\(2, 9, 9\).*mask_per_sequence\(mask\)"):
            layer(some_input(), mask=torch.ones(2, 9, 9, dtype=torch.bool))
        for dtype in (torch.float32, torch.int64):
            with pytest.raises(ValueError, match=rf"{dtype}.*torch\.bool"):
                layer(some_input(), mask=torch.ones(9, 9, dtype=dtype))
        for shape in ((9,), (9, 8), (8, 9), (1, 9), (3, 1, 9, 9), (2, 4, 9, 9), (2, 1, 9, 1)):
            shown = [re.escape(str(part)) for part in (shape, (9, 9), (2, layer.heads, 9, 9))]
            with pytest.raises(ValueError, match=".*".join(shown)):
                layer(some_input(), mask=torch.ones(shape, dtype=torch.bool))


def test_masks_of_other_axes_are_refused_with_their_shape():
    for make, axes, shapes in (
        (mask_from_padding, "batch, keys", [(9,), (2, 1, 9), (2, 1, 1, 9)]),
        (mask_per_sequence, "batch, queries, keys", [(9,), (9, 9), (2, 1, 9, 9)]),
    ):
        for shape in shapes:
            with pytest.raises(ValueError, match=rf"{re.escape(str(shape))}.*\({axes}\)"):
                make(torch.ones(shape, dtype=torch.bool))
