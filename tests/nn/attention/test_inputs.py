"""The laws of masks, sizes and inputs, for all attentions: which keys a query can see, that a mask
only hides keys, batch axes, and refusals that show the numbers."""

import math
import re
from functools import partial

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
    every_pair,
    past,
    some_input,
    some_mask,
)
from torch import Tensor

from headscope.errors import UserError
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


@every_pair
def test_gradient_comes_from_itself_and_all_before_and_never_from_the_future(name, position):
    layer = attention(name)
    place = encoding(position, layer)
    # From the same sequence (B, T, B, S) alone.
    expected = torch.eye(BATCH, dtype=torch.bool)[:, None, :, None] & past(LENGTH)[:, None]
    for weights in (False, True):
        run = partial(by_path, layer, weights=weights, position=place)
        assert torch.equal(reach(run, some_input(LENGTH)), expected)


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
def test_weights_under_a_mask_are_those_without_it_shared_among_what_it_shows(name):
    layer, x = attention(name), some_input()
    for kind in MASKS:
        mask = some_mask(kind, layer.heads)
        shown = layer(x, weights=True)[1] * mask
        expected = shown / shown.sum(dim=-1, keepdim=True)
        _, seen = layer(x, mask=mask, weights=True)
        torch.testing.assert_close(seen, expected, rtol=1e-4, atol=1e-6)


@every_attention
@pytest.mark.parametrize("weights", [True, False])
def test_a_query_that_may_look_nowhere_gets_zeros_and_disturbs_no_other(name, weights):
    layer, x = attention(name, out_proj=False), some_input().requires_grad_()
    place = encoding("relative", layer)
    mask = some_mask("padding", layer.heads)
    mask[-1, ..., :4] = False  # four blind queries in a causal layer
    blind = ~(mask & past(BLOCK)).expand(BATCH, 1, BLOCK, BLOCK).any(dim=-1)[:, 0]
    assert 4 <= blind.sum() < BLOCK
    wanted = [x, *layer.parameters(), *place.parameters()]

    def heads_and_gradients(mask, of):
        heads = by_path(layer, x, mask=mask, position=place, weights=weights)[of]
        return heads, *torch.autograd.grad(heads.square().sum() + heads.sum(), wanted)

    assert not any(part.any() for part in heads_and_gradients(mask, blind))
    expected = heads_and_gradients(mask | blind[:, None, :, None], ~blind)
    torch.testing.assert_close(heads_and_gradients(mask, ~blind), expected, rtol=1e-4, atol=1e-4)
    _, seen = layer(x, mask=mask, position=place, weights=True)
    torch.testing.assert_close(seen.sum(dim=-1), (~blind).float()[:, None].expand(seen.shape[:-1]))


@every_attention
def test_without_a_batch_axis_it_is_a_batch_of_one_without_that_axis(name):
    layer, x = attention(name), some_input(batch=1)
    mask = some_mask("per_head", layer.heads)[:1, :, -4:]
    options = {"mask": mask, "position": encoding("rotary", layer)}
    for inputs in ([x[:, -4:], x], [x[:, -4:], some_input(seed=1, batch=1), x]):
        whole, weights = layer(*inputs, **options, weights=True)
        unbatched = [part[0] for part in inputs]
        alone = layer(*unbatched, **options), *layer(*unbatched, **options, weights=True)
        for got, expected in zip(alone, (whole, whole, weights), strict=True):
            torch.testing.assert_close(got, expected[0], rtol=1e-4, atol=1e-5)


@every_attention
def test_sizes_are_those_that_were_chosen(name):
    biases = {"qkv_bias": True, "out_bias": True}
    for options in ({}, {"head_dim": 5, "out_dim": 7, "qk_norm": True, **biases}):
        layer = attention(name, embed_dim=18, **options)
        assert layer.head_dim == options.get("head_dim", 18 // layer.heads)
        assert layer(torch.ones(2, 9, 18)).shape == (2, 9, options.get("out_dim", 18))


@every_attention
def test_a_value_that_cannot_be_is_refused_by_name(name):
    for key, values in (
        ("heads", (0, -2)),
        ("head_dim", (0, -1)),
        ("kv_heads", (4, 12, 0, -1)),
        ("scale", (0.0, -1.0, math.inf, math.nan)),
        ("out_dim", (0,)),
    ):
        for value in values:
            with pytest.raises(UserError, match=rf"\b{key}={value}(?!\d)"):
                attention(name, **{key: value})
    with pytest.raises(UserError, match="block_size"):
        attention(name, block_size=None)
    with pytest.raises(UserError, match=r"head_dim=5\b.*\b24\b"):
        attention(name, out_proj=False, head_dim=5)


def test_heads_that_do_not_fit_are_refused_and_the_message_says_what_would():
    for name, options, message in (
        ("multi_head", {"embed_dim": 23}, r"embed_dim=23\b.*heads=6\b.*head_dim"),
        ("single_head", {"heads": 8}, r"heads=8\b.*model/attention=multi_head"),
        ("multi_head", {"kv_heads": 2}, r"kv_heads=2\b.*\b6\b.*=grouped_query"),
        ("multi_query", {"kv_heads": 2}, r"kv_heads=2\b.*model/attention=grouped_query"),
        ("grouped_query", {"kv_heads": 4}, r"heads=6\b.*kv_heads=4\b"),
    ):
        with pytest.raises(UserError, match=message):
            attention(name, **options)


@every_attention
def test_inputs_that_do_not_fit_are_refused_and_never_broadcast(name):
    one, many, layer = (9, 24), (2, 9, 24), attention(name, causal=False)
    for shapes in (
        *((one, many, many), (many, many, one), (one[1:],) * 3, ((1, *many),) * 3),
        *((many, many, (2, 6, 24)), (many, (2, 6, 24), many)),  # keys and values
        *((many, (1, 9, 24)), (many, many, (3, 9, 24))),  # other batches
        *(((2, 9, 23),), (many, (2, 9, 23))),  # other widths
    ):
        for weights in (False, True):
            with pytest.raises((UserError, RuntimeError)):
                layer(*(torch.zeros(shape) for shape in shapes), weights=weights)
    for lengths, message in (
        ((3, 10), r"\b10 tokens.*block_size=9\b"),
        ((5, 3), r"5 queries, but 3 keys"),
    ):
        with pytest.raises(UserError, match=message):
            attention(name)(*map(some_input, lengths))


def test_a_mask_of_other_axes_or_another_type_is_refused():
    layer = attention("multi_head")
    with pytest.raises(UserError, match=r"float32.*torch\.bool"):
        layer(some_input(), mask=torch.ones(9, 9))
    for shape in ((9,), (9, 8), (1, 9), (2, 9, 9), (3, 1, 9, 9), (2, 4, 9, 9), (2, 1, 9, 1)):
        with pytest.raises(UserError, match=rf"{re.escape(str(shape))}.*mask_per_sequence"):
            layer(some_input(), mask=torch.ones(shape, dtype=torch.bool))
    for make, shape in ((mask_from_padding, (2, 1, 9)), (mask_per_sequence, (9, 9))):
        with pytest.raises(UserError, match=re.escape(str(shape))):
            make(torch.ones(shape, dtype=torch.bool))
    with pytest.raises(UserError, match=r"float32.*boolean"):
        mask_from_padding(torch.ones(2, 9))
    numbers = torch.tensor([[1, 0, 1], [0, 1, 1]])
    assert torch.equal(mask_from_padding(numbers)[:, 0, 0], numbers.bool())
