"""The laws of sizes and inputs, for all attentions: batch axes, defaults, parameter counts, and
refusals that show the numbers."""

import itertools
import math
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
from headscope.nn import grouped_query, multi_head, multi_query, single_head


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
    layer, x, key = attention(name), some_input(), some_input(seed=1)
    for weights in (False, True):
        for written_out, short in (((x, x), (x,)), ((x, x, x), (x,)), ((x, key, key), (x, key))):
            expected, got = (layer(*inputs, weights=weights) for inputs in (written_out, short))
            torch.testing.assert_close(as_tuple(got), as_tuple(expected), rtol=1e-4, atol=1e-5)
    by_name = layer(x, value=key)
    torch.testing.assert_close(by_name, layer(x, x, key))
    assert (by_name - layer(x)).abs().max() > 1e-2


# --- sizes ---


def parameters_of(name: str, layer) -> int:
    """The formula in the docstring of its class."""
    heads, kv_heads, width = layer.heads, layer.kv_heads, layer.head_dim
    rows = (heads + 2 * kv_heads) * width
    norms = 2 * width * (heads if name == "stacked_heads" else 1)
    return (
        rows * layer.embed_dim
        + heads * width * layer.out_dim * layer.has_out_proj
        + rows * layer.qkv_bias
        + layer.out_dim * layer.out_bias
        + norms * layer.qk_norm
        + heads * width * (name == "additive")
    )


@every_attention
def test_sizes_are_those_that_were_chosen_and_parameters_as_many_as_said(name):
    heads, embed_dim = attention(name).heads, 18
    for head_dim, out_dim, out_proj in (
        *((None, None, True), (5, 7, True)),
        *((None, None, False), (5, 5 * heads, False)),
    ):
        sizes = {"embed_dim": embed_dim, "head_dim": head_dim, "out_dim": out_dim}
        for qkv_bias, out_bias, qk_norm in itertools.product([False, True], repeat=3):
            if out_bias and not out_proj:
                continue
            flags = {"qkv_bias": qkv_bias, "out_bias": out_bias, "qk_norm": qk_norm}
            layer = attention(name, **sizes, **flags, out_proj=out_proj)
            assert layer.head_dim == (head_dim or embed_dim // heads)
            count = sum(parameter.numel() for parameter in layer.parameters())
            assert count == parameters_of(name, layer)
            assert layer(torch.ones(2, 9, embed_dim)).shape == (2, 9, out_dim or embed_dim)


@every_attention
def test_heads_are_those_that_the_name_promises(name):
    expected = {"single_head": (1, 1), "multi_query": (6, 1), "grouped_query": (6, 2)}
    layer = attention(name)
    assert (layer.heads, layer.kv_heads) == expected.get(name, (6, 6))
    if name != "additive":
        assert attention(name, kv_heads=layer.kv_heads).kv_heads == layer.kv_heads


@every_attention
def test_without_causal_no_block_size_is_needed(name):
    layer = attention(name, block_size=None, causal=False)
    assert layer(some_input(40)).shape == (2, 40, 24)


# --- what is refused ---


def test_heads_that_do_not_divide_the_width_are_refused_unless_head_dim_is_given():
    names = [name for name in ATTENTIONS if name != "single_head"]
    for name, embed_dim in itertools.product(names, (23, 4)):
        with pytest.raises(UserError, match=rf"embed_dim={embed_dim}\b.*heads=6\b.*head_dim"):
            attention(name, embed_dim=embed_dim)
        layer = attention(name, embed_dim=embed_dim, head_dim=3)
        assert (layer.head_dim, layer.out_dim) == (3, embed_dim)


def test_a_value_that_cannot_be_is_refused_by_name():
    for name in ATTENTIONS:
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
        heads = attention(name).heads
        for key, value, head_dim, width in (("head_dim", 5, 5, 24), ("out_dim", 7, 24 // heads, 7)):
            message = rf"heads={heads}\b.*head_dim={head_dim}\b.*\b{width}\b"
            with pytest.raises(UserError, match=message):
                attention(name, out_proj=False, **{key: value})


def test_a_name_is_held_to_its_heads_and_the_message_names_another():
    for make, options, message in (
        (single_head, {"heads": 8}, r"heads=8\b.*model/attention=multi_head"),
        (multi_head, {"heads": 6, "kv_heads": 2}, r"kv_heads=2\b.*\b6\b.*=grouped_query"),
        (multi_query, {"heads": 6, "kv_heads": 2}, r"kv_heads=2\b.*model/attention=grouped_query"),
        (grouped_query, {"heads": 6}, r"grouped_query needs kv_heads"),
        (ATTENTIONS["stacked_heads"], {"heads": 6, "kv_heads": 2}, r"kv_heads=2\b.*\b6\b"),
        (grouped_query, {"heads": 6, "kv_heads": 4}, r"heads=6\b.*kv_heads=4\b"),
    ):
        with pytest.raises(UserError, match=message):
            make(embed_dim=24, block_size=9, **options)


def test_inputs_that_do_not_fit_are_refused_with_their_shapes():
    one, many = (9, 24), (2, 9, 24)
    for name, causal in itertools.product(ATTENTIONS, (True, False)):
        layer = attention(name, causal=causal)
        for shapes in (
            *((one, many, many), (many, one, one), (many, many, one), (one, one, many)),
            *((one[1:],) * 3, ((1, *many),) * 3),
            *(((2, 4, 24), (2, 5, 24), (2, 6, 24)), ((4, 24), (5, 24), (6, 24))),  # keys, values
            *(((2, 4, 24), (3, 5, 24)), ((2, 4, 24), (2, 5, 24), (3, 5, 24))),  # other batches
            *(((2, 4, 23),), ((2, 4, 24), (2, 5, 23))),  # other widths
            *(((2, 0, 24),), ((0, 9, 24),), ((0, 24),), ((2, 3, 24), (2, 0, 24))),  # nothing
        ):
            shown = ", ".join(re.escape(str(shape)) for shape in shapes)
            with pytest.raises(UserError, match=rf"{shown}.*give non-empty.*without the batch ax"):
                layer(*(torch.zeros(shape) for shape in shapes))
        for dtype in [torch.int64, torch.bool]:
            with pytest.raises(UserError, match=rf"{dtype}.*floating-point"):
                layer(torch.ones(2, 3, 24, dtype=dtype))


def test_too_many_tokens_or_queries_are_refused_with_both_numbers():
    for name in ATTENTIONS:
        layer = attention(name)
        assert layer(some_input(9)).shape == (2, 9, WIDTH)
        for inputs in ([some_input(10)], [some_input(3), some_input(10)]):
            with pytest.raises(UserError, match=r"\b10 tokens.*block_size=9\b"):
                layer(*inputs)
        for causal, position in ((True, None), (True, "alibi"), (False, "alibi")):
            layer = attention(name, causal=causal)
            with pytest.raises(UserError, match=r"queries \(5\) must not outnumber keys \(3\)"):
                layer(some_input(5), some_input(3), position=encoding(position, layer))
        without_order = attention(name, causal=False)
        assert without_order(some_input(5), some_input(3)).shape == (2, 5, WIDTH)


def test_a_mask_of_other_axes_or_another_type_is_refused():
    for name in ATTENTIONS:
        layer = attention(name)
        for dtype in (torch.float32, torch.int64):
            with pytest.raises(UserError, match=rf"{dtype}.*torch\.bool"):
                layer(some_input(), mask=torch.ones(9, 9, dtype=dtype))
        four = ((3, 1, 9, 9), (2, 4, 9, 9), (2, 1, 4, 9), (2, 1, 9, 1))
        for shape in ((9,), (9, 8), (8, 9), (1, 9), (2, 9, 9), *four):
            shown = [re.escape(str(part)) for part in (shape, (9, 9), (2, layer.heads, 9, 9))]
            message = ".*".join([*shown, r"mask_per_sequence\(mask\)"])
            with pytest.raises(UserError, match=message):
                layer(some_input(), mask=torch.ones(shape, dtype=torch.bool))
