"""The laws of sizes, for all attentions: as many parameters as said, and what does not fit is
refused with its numbers."""

import itertools
import math

import pytest
from attention_layers import attention, every_attention, some_input
from choices import ATTENTIONS

from headscope.nn import grouped_query, multi_head, multi_query, single_head


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
def test_parameters_are_as_many_as_said(name):
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
            assert layer.embed_dim == embed_dim
            assert layer.head_dim == (head_dim or embed_dim // heads)
            assert layer.out_dim == (out_dim or embed_dim)
            assert layer.has_out_proj == out_proj
            assert {key: getattr(layer, key) for key in flags} == flags
            count = sum(parameter.numel() for parameter in layer.parameters())
            assert count == parameters_of(name, layer)


@every_attention
def test_heads_are_those_that_the_name_promises_and_a_classical_layer_has_four_widths_squared(name):
    layer = attention(name)
    heads, kv_heads, matrices = {
        "single_head": (1, 1, 4),
        "multi_query": (6, 1, 2 + 2 / 6),
        "grouped_query": (6, 2, 2 + 4 / 6),
        "additive": (6, 6, 4 + 1 / 24),
    }.get(name, (6, 6, 4))
    assert (layer.heads, layer.kv_heads, layer.head_dim) == (heads, kv_heads, 24 // heads)
    count = sum(parameter.numel() for parameter in layer.parameters())
    assert count == round(matrices * 24**2)


@every_attention
def test_a_state_dict_holds_parameters_alone(name):
    layer = attention(name, qkv_bias=True, out_bias=True, qk_norm=True)
    assert set(layer.state_dict()) == {key for key, _ in layer.named_parameters()}


@every_attention
def test_output_is_as_wide_as_said(name):
    for options in ({}, {"head_dim": 5}, {"out_dim": 7}, {"head_dim": 5, "out_dim": 7}):
        layer = attention(name, **options)
        assert layer(some_input()).shape == (2, 9, options.get("out_dim", 24))


def test_heads_that_do_not_divide_the_width_are_refused_unless_head_dim_is_given():
    names = [name for name in ATTENTIONS if name != "single_head"]
    for name, embed_dim in itertools.product(names, (23, 4)):
        with pytest.raises(ValueError, match=rf"embed_dim={embed_dim}\b.*heads=6\b.*head_dim"):
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
        ):
            for value in values:
                with pytest.raises(ValueError, match=rf"\b{key}={value}(?!\d)"):
                    attention(name, **{key: value})
        with pytest.raises(ValueError, match="block_size"):
            attention(name, block_size=None)
        heads = attention(name).heads
        for options, head_dim, wanted in (
            ({"head_dim": 5}, 5, 24),
            ({"out_dim": 7}, 24 // heads, 7),
        ):
            message = rf"heads={heads}\b.*head_dim={head_dim}\b.*\b{wanted}\b"
            with pytest.raises(ValueError, match=message):
                attention(name, out_proj=False, **options)


def test_a_name_is_held_to_its_heads_and_names_the_way_out():
    for make, options, message in (
        (single_head, {"heads": 8}, r"heads=8\b.*model/attention=multi_head"),
        (multi_head, {"heads": 6, "kv_heads": 2}, r"kv_heads=2\b.*heads=6\b.*=grouped_query"),
        (multi_query, {"heads": 6, "kv_heads": 2}, r"kv_heads=2\b.*model/attention=grouped_query"),
        (grouped_query, {"heads": 6}, r"grouped_query needs kv_heads"),
        (ATTENTIONS["stacked_heads"], {"heads": 6, "kv_heads": 2}, r"kv_heads=2\b.*heads=6\b"),
        (grouped_query, {"heads": 6, "kv_heads": 4}, r"heads=6\b.*kv_heads=4\b"),
    ):
        with pytest.raises(ValueError, match=message):
            make(embed_dim=24, block_size=9, **options)


def test_key_heads_that_the_name_promises_may_be_said():
    for name in ("single_head", "multi_query", "multi_head", "grouped_query"):
        kv_heads = 1 if name in ("single_head", "multi_query") else 6
        assert attention(name, kv_heads=kv_heads).kv_heads == kv_heads


@every_attention
def test_without_causal_no_block_size_is_needed(name):
    layer = attention(name, block_size=None, causal=False)
    assert layer(some_input(40)).shape == (2, 40, 24)
