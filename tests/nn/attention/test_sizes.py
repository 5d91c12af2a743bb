"""The laws of sizes, for all attentions: as many parameters as said, and what does not fit is
refused with its numbers."""

import itertools
import math

import pytest
from attention_layers import attention, every_attention, some_input
from choices import ATTENTIONS

from headscope.nn import grouped_query, multi_head, multi_query, single_head

with_heads = pytest.mark.parametrize("name", [name for name in ATTENTIONS if name != "single_head"])


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
@pytest.mark.parametrize(
    ("head_dim", "out_dim"), [(None, None), (5, 7), (None, "no out_proj"), (5, "no out_proj")]
)
def test_parameters_are_as_many_as_said(name, head_dim, out_dim):
    heads, embed_dim = attention(name).heads, 18
    sizes = {"embed_dim": embed_dim, "head_dim": head_dim, "out_dim": out_dim}
    if out_dim == "no out_proj":
        sizes |= {"out_proj": False, "out_dim": heads * head_dim if head_dim else None}
    for qkv_bias, out_bias, qk_norm in itertools.product([False, True], repeat=3):
        if out_bias and out_dim == "no out_proj":
            continue
        layer = attention(name, qkv_bias=qkv_bias, out_bias=out_bias, qk_norm=qk_norm, **sizes)
        assert layer.embed_dim == embed_dim
        assert layer.head_dim == (head_dim or embed_dim // heads)
        assert layer.out_dim == (sizes["out_dim"] or embed_dim)
        assert layer.has_out_proj == (out_dim != "no out_proj")
        assert (layer.qkv_bias, layer.out_bias, layer.qk_norm) == (qkv_bias, out_bias, qk_norm)
        count = sum(parameter.numel() for parameter in layer.parameters())
        assert count == parameters_of(name, layer)


@every_attention
def test_the_classical_layer_has_four_times_the_width_squared(name):
    expected = {"multi_query": 2 + 2 / 6, "grouped_query": 2 + 4 / 6, "additive": 4 + 1 / 24}
    layer = attention(name)
    count = sum(parameter.numel() for parameter in layer.parameters())
    assert count == round(expected.get(name, 4) * 24**2)


@every_attention
def test_heads_are_those_that_the_name_promises(name):
    layer = attention(name)
    heads, kv_heads = {
        "single_head": (1, 1),
        "multi_query": (6, 1),
        "grouped_query": (6, 2),
    }.get(name, (6, 6))
    assert (layer.heads, layer.kv_heads, layer.head_dim) == (heads, kv_heads, 24 // heads)


@every_attention
def test_a_state_dict_holds_parameters_alone(name):
    layer = attention(name, qkv_bias=True, out_bias=True, qk_norm=True)
    assert set(layer.state_dict()) == {key for key, _ in layer.named_parameters()}


@every_attention
def test_output_is_as_wide_as_said(name):
    for options in ({}, {"head_dim": 5}, {"out_dim": 7}, {"head_dim": 5, "out_dim": 7}):
        layer = attention(name, **options)
        assert layer(some_input()).shape == (2, 9, options.get("out_dim", 24))


@with_heads
def test_heads_that_do_not_divide_the_width_are_refused_unless_head_dim_is_given(name):
    for embed_dim in [23, 4]:
        with pytest.raises(ValueError, match=rf"embed_dim={embed_dim}\b.*heads=6\b.*head_dim"):
            attention(name, embed_dim=embed_dim)
        layer = attention(name, embed_dim=embed_dim, head_dim=3)
        assert (layer.head_dim, layer.out_dim) == (3, embed_dim)


@every_attention
def test_heads_below_one_are_refused(name):
    for heads, head_dim in itertools.product((0, -2), (None, 4)):
        with pytest.raises(ValueError, match=rf"\bheads={heads}(?!\d)"):
            attention(name, heads=heads, head_dim=head_dim)


@every_attention
def test_a_head_dim_below_one_is_refused(name):
    for head_dim in (0, -1):
        with pytest.raises(ValueError, match=rf"head_dim={head_dim}(?!\d)"):
            attention(name, head_dim=head_dim)


@every_attention
def test_key_heads_that_do_not_divide_the_heads_are_refused(name):
    for kv_heads in (4, 12, 0, -1):
        with pytest.raises(ValueError, match=rf"kv_heads={kv_heads}(?!\d)"):
            attention(name, kv_heads=kv_heads)


@pytest.mark.parametrize("name", ["grouped_query", "additive"])
def test_key_heads_that_do_not_divide_the_heads_are_refused_with_both_numbers(name):
    with pytest.raises(ValueError, match=r"heads=6\b.*kv_heads=4\b"):
        attention(name, kv_heads=4)


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (single_head, {"heads": 8}, r"heads=8\b.*model/attention=multi_head"),
        (multi_head, {"heads": 6, "kv_heads": 2}, r"kv_heads=2\b.*heads=6\b.*=grouped_query"),
        (multi_query, {"heads": 6, "kv_heads": 2}, r"kv_heads=2\b.*model/attention=grouped_query"),
        (grouped_query, {"heads": 6}, r"grouped_query needs kv_heads"),
        (ATTENTIONS["stacked_heads"], {"heads": 6, "kv_heads": 2}, r"kv_heads=2\b.*heads=6\b"),
    ],
)
def test_a_name_is_held_to_its_heads_and_names_the_way_out(make, options, message):
    with pytest.raises(ValueError, match=message):
        make(embed_dim=24, block_size=9, **options)


@pytest.mark.parametrize(
    ("make", "kv_heads"), [(single_head, 1), (multi_query, 1), (multi_head, 6), (grouped_query, 6)]
)
def test_key_heads_that_the_name_promises_may_be_said(make, kv_heads):
    heads = 1 if make is single_head else 6
    layer = make(embed_dim=24, block_size=9, heads=heads, kv_heads=kv_heads)
    assert layer.kv_heads == kv_heads


@every_attention
def test_a_scale_that_is_no_scale_is_refused(name):
    for scale in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match=f"scale={scale}"):
            attention(name, scale=scale)


@every_attention
def test_without_out_proj_another_width_is_refused_with_all_numbers(name):
    heads = attention(name).heads
    for options, head_dim, wanted in (({"head_dim": 5}, 5, 24), ({"out_dim": 7}, 24 // heads, 7)):
        message = rf"heads={heads}\b.*head_dim={head_dim}\b.*\b{wanted}\b"
        with pytest.raises(ValueError, match=message):
            attention(name, out_proj=False, **options)


@every_attention
def test_causal_needs_a_block_size_and_without_causal_none_is_needed(name):
    with pytest.raises(ValueError, match="block_size"):
        attention(name, block_size=None)
    layer = attention(name, block_size=None, causal=False)
    assert layer(some_input(40)).shape == (2, 40, 24)
