"""The laws of what goes in, for all attentions: batch axes, defaults, and refusals."""

import re

import pytest
import torch
from attention_layers import (
    WIDTH,
    attention,
    both_paths,
    encoding,
    every_attention,
    every_pair,
    some_input,
    some_mask,
)

from headscope.errors import UserError
from headscope.nn import NoPosition, mask_per_sequence


def as_tuple(result):
    return result if isinstance(result, tuple) else (result,)


@every_pair
def test_without_a_batch_axis_it_is_a_batch_of_one_without_that_axis(name, position):
    layer, x = attention(name), some_input(batch=1)
    place = encoding(position, layer)
    own, of_heads = some_mask("queries_keys", layer.heads), some_mask("per_head", layer.heads)[:1]
    for inputs, mask in (
        ([x], None),
        ([x], own),
        ([x[:, -4:], x], of_heads[..., -4:, :]),
        ([x, some_input(seed=1, batch=1), some_input(seed=2, batch=1)], None),
    ):
        unbatched = [part[0] for part in inputs]
        for weights in (False, True):
            options = {"mask": mask, "position": place, "weights": weights}
            batched, alone = layer(*inputs, **options), layer(*unbatched, **options)
            for got, expected in zip(as_tuple(alone), as_tuple(batched), strict=True):
                assert expected.size(0) == 1
                torch.testing.assert_close(got, expected[0], rtol=1e-4, atol=1e-5)


@both_paths
@every_attention
def test_key_is_query_and_value_is_key_unless_given(name, weights):
    layer, x, key = attention(name), some_input(), some_input(seed=1)
    for written_out, short in (((x, x), (x,)), ((x, x, x), (x,)), ((x, key, key), (x, key))):
        for got, expected in zip(
            *(as_tuple(layer(*inputs, weights=weights)) for inputs in (written_out, short)),
            strict=True,
        ):
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    by_name = layer(x, value=key)
    torch.testing.assert_close(by_name, layer(x, x, key))
    assert (by_name - layer(x)).abs().max() > 1e-2


@every_attention
def test_no_position_is_none_at_all(name):
    layer, x = attention(name), some_input()
    nowhere = NoPosition(embed_dim=WIDTH, block_size=9, heads=layer.heads, head_dim=layer.head_dim)
    assert torch.equal(layer(x, position=nowhere), layer(x))


@every_attention
def test_mixed_axes_are_refused_with_all_shapes(name):
    layer, one, many = attention(name, causal=False), (9, 24), (2, 9, 24)
    for query, key, value in (
        (one, many, many),
        (many, one, one),
        (many, many, one),
        (one, one, many),
        (one[1:],) * 3,
        ((1, *many),) * 3,
    ):
        shown = re.escape(f"{query}, {key}, {value}")
        with pytest.raises(ValueError, match=rf"{shown}.*\(B, T, 24\).*without the batch axis"):
            layer(torch.zeros(query), torch.zeros(key), torch.zeros(value))


@every_attention
def test_keys_and_values_that_are_not_as_many_are_refused_with_both_shapes(name):
    for shapes in [
        [(2, 4, 24), (2, 5, 24), (2, 6, 24)],
        [(2, 4, 24), (2, 5, 24), (2, 1, 24)],
        [(4, 24), (5, 24), (6, 24)],
    ]:
        shown = ".*".join(re.escape(str(shape)) for shape in shapes[1:])
        with pytest.raises(ValueError, match=shown):
            attention(name, causal=False)(*(torch.zeros(shape) for shape in shapes))


@every_attention
def test_other_batches_and_other_widths_are_refused_with_the_shape(name):
    for shapes in [
        [(2, 4, 24), (3, 5, 24)],
        [(2, 4, 24), (2, 5, 24), (3, 5, 24)],
        [(2, 4, 23)],
        [(2, 4, 24), (2, 5, 23)],
    ]:
        with pytest.raises(ValueError, match=re.escape(str(shapes[-1]))):
            attention(name, causal=False)(*(torch.zeros(shape) for shape in shapes))


@every_attention
def test_more_tokens_than_block_size_are_refused_with_both_numbers(name):
    layer = attention(name)
    assert layer(some_input(9)).shape == (2, 9, WIDTH)
    for inputs in ([some_input(10)], [some_input(3), some_input(10)]):
        with pytest.raises(ValueError, match=r"\b10 tokens.*block_size=9\b"):
            layer(*inputs)


@every_attention
def test_more_queries_than_keys_are_refused_where_order_matters(name):
    for causal, position in ((True, None), (True, "alibi"), (False, "alibi")):
        layer = attention(name, causal=causal)
        place = encoding(position, layer)
        with pytest.raises(ValueError, match=r"queries \(5\) must not outnumber keys \(3\)"):
            layer(some_input(5), some_input(3), position=place)
    without_order = attention(name, causal=False)
    assert without_order(some_input(5), some_input(3)).shape == (2, 5, WIDTH)


def test_a_mask_of_sequences_is_held_to_the_batch():
    mask = mask_per_sequence(torch.ones(3, 9, 9, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"\(3, 1, 9, 9\).*\(2, 6, 9, 9\)"):
        attention("multi_head")(some_input(), mask=mask)


@every_attention
def test_empty_inputs_are_refused_with_their_shape(name):
    for shape in [(2, 0, 24), (0, 9, 24), (0, 24)]:
        for causal in (True, False):
            for weights in (True, False):
                with pytest.raises(UserError, match=rf"{re.escape(str(shape))}.*give non-empty"):
                    attention(name, causal=causal)(torch.zeros(shape), weights=weights)


@every_attention
def test_empty_keys_are_refused(name):
    with pytest.raises(UserError, match="give non-empty"):
        attention(name, causal=False)(some_input(3), torch.zeros(2, 0, 24))


@every_attention
def test_inputs_that_are_no_floating_point_numbers_are_refused(name):
    for dtype in [torch.int64, torch.bool]:
        with pytest.raises(UserError, match=rf"{dtype}.*floating-point"):
            attention(name)(torch.ones(2, 3, 24, dtype=dtype))
