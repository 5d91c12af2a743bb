"""The laws of what goes in, for all attentions: batch axes, defaults, and refusals."""

import itertools
import re

import pytest
import torch
from attention_layers import (
    WIDTH,
    attention,
    encoding,
    every_attention,
    every_pair,
    some_input,
    some_mask,
)
from choices import ATTENTIONS

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


@every_attention
def test_key_is_query_and_value_is_key_unless_given(name):
    for weights in (False, True):
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


def test_shapes_that_do_not_fit_together_are_refused_with_the_shapes():
    one, many = (9, 24), (2, 9, 24)
    for name in ATTENTIONS:
        layer = attention(name, causal=False)
        for query, key, value in (
            *((one, many, many), (many, one, one), (many, many, one), (one, one, many)),
            *((one[1:],) * 3, ((1, *many),) * 3),
        ):
            shown = re.escape(f"{query}, {key}, {value}")
            with pytest.raises(ValueError, match=rf"{shown}.*\(B, T, 24\).*without the batch axis"):
                layer(torch.zeros(query), torch.zeros(key), torch.zeros(value))
        for shapes, named in (
            ([(2, 4, 24), (2, 5, 24), (2, 6, 24)], 2),  # not as many values as keys
            ([(4, 24), (5, 24), (6, 24)], 2),
            ([(2, 4, 24), (3, 5, 24)], 1),  # other batches
            ([(2, 4, 24), (2, 5, 24), (3, 5, 24)], 1),
            ([(2, 4, 23)], 1),  # other widths
            ([(2, 4, 24), (2, 5, 23)], 1),
        ):
            message = ".*".join(re.escape(str(shape)) for shape in shapes[-named:])
            with pytest.raises(ValueError, match=message):
                layer(*(torch.zeros(shape) for shape in shapes))


@every_attention
def test_more_tokens_than_block_size_are_refused_with_both_numbers(name):
    layer = attention(name)
    assert layer(some_input(9)).shape == (2, 9, WIDTH)
    for inputs in ([some_input(10)], [some_input(3), some_input(10)]):
        with pytest.raises(ValueError, match=r"\b10 tokens.*block_size=9\b"):
            layer(*inputs)


def test_more_queries_than_keys_are_refused_where_order_matters():
    for name in ATTENTIONS:
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


def test_empty_inputs_and_integers_are_refused():
    for name, causal in itertools.product(ATTENTIONS, (True, False)):
        layer = attention(name, causal=causal)
        for shape in [(2, 0, 24), (0, 9, 24), (0, 24)]:
            with pytest.raises(UserError, match=rf"{re.escape(str(shape))}.*give non-empty"):
                layer(torch.zeros(shape))
        for dtype in [torch.int64, torch.bool]:
            with pytest.raises(UserError, match=rf"{dtype}.*floating-point"):
                layer(torch.ones(2, 3, 24, dtype=dtype))
    with pytest.raises(UserError, match="give non-empty"):
        attention("multi_head", causal=False)(some_input(3), torch.zeros(2, 0, 24))
