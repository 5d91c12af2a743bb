"""Attention against attention that others wrote, and its variants against one another."""

import pytest
import torch
from attention_layers import (
    BLOCK,
    IN_ATTENTION,
    WIDTH,
    attention,
    encoding,
    far_from_zero,
    past,
    some_input,
    some_mask,
)
from torch import Tensor
from transformers import LlamaConfig, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention, Qwen3RotaryEmbedding

from headscope.nn import StackedHeads

OPTIONS = [
    *({}, {"qkv_bias": True}, {"qk_norm": True}, {"scale": 0.3}, {"head_dim": 10}),
    *({"heads": 5, "head_dim": 6}, {"out_dim": 7}, {"out_bias": True}, {"causal": False}),
]
OPTIONS += [{k: v for part in OPTIONS for k, v in part.items()}, {"out_proj": False}]


def same_on_both_paths(layer, inputs, expected, expected_weights, **options) -> None:
    out, weights = layer(*inputs, weights=True, **options)
    for got in (out, layer(*inputs, **options)):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(weights, expected_weights, rtol=1e-4, atol=2e-5)


def one_matrix(stacked: StackedHeads, kind: str) -> Tensor:
    """Weights, or biases, of all heads: queries, keys, values."""
    heads = [
        [getattr(h.query, kind), getattr(h.key, kind), getattr(h.value, kind)]
        for h in stacked.stack
    ]
    return torch.cat([part for role in zip(*heads, strict=True) for part in role])


@pytest.mark.parametrize(
    ("options", "kind", "position"),
    [
        ({}, None, None),
        *((options, "per_head", None) for options in OPTIONS),
        *(({"qkv_bias": True}, "queries_keys", position) for position in IN_ATTENTION),
    ],
    ids=str,
)
def test_multi_head_equals_heads_side_by_side(options, kind, position):
    stacked, layer = attention("stacked_heads", **options), attention("multi_head", **options)
    copied = {"qkv.weight": one_matrix(stacked, "weight")}
    if layer.qkv_bias:
        copied["qkv.bias"] = one_matrix(stacked, "bias")
    for key, parameter in stacked.out_proj.named_parameters():
        copied[f"out_proj.{key}"] = parameter
    if layer.qk_norm:
        for norm in ("q_norm", "k_norm"):
            copied[f"{norm}.weight"] = gains = getattr(stacked.stack[0], norm).weight
            for head in stacked.stack:
                getattr(head, norm).weight = gains
    layer.load_state_dict(copied)
    place = encoding(position, layer)
    for inputs in ([some_input()], [some_input(4), some_input(7, seed=1), some_input(7, seed=2)]):
        queries, keys = inputs[0].size(1), inputs[-1].size(1)
        mask = kind and some_mask(kind, layer.heads, queries, keys)
        expected, weights = stacked(*inputs, weights=True, mask=mask, position=place)
        same_on_both_paths(layer, inputs, expected, weights, mask=mask, position=place)


LLAMA = (4, LlamaConfig, LlamaAttention, LlamaRotaryEmbedding)
QWEN3 = (10, Qwen3Config, Qwen3Attention, Qwen3RotaryEmbedding)


@pytest.mark.parametrize(("length", "bias"), [(1, False), (9, True)])
@pytest.mark.parametrize("theirs", [LLAMA, QWEN3], ids=["llama", "qwen3"])
def test_equals_the_attention_of_llama_and_with_qk_norm_that_of_qwen3(theirs, length, bias):
    head_dim, make_config, make, make_rotary = theirs
    heads = {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": head_dim}
    sizes = {"hidden_size": WIDTH, "max_position_embeddings": BLOCK, "attention_bias": bias}
    config = make_config(**heads, **sizes, attn_implementation="eager")
    other = far_from_zero(make(config, layer_idx=0).eval())
    options = {"kv_heads": 2, "head_dim": head_dim, "qkv_bias": bias, "out_bias": bias}
    layer = attention("grouped_query", qk_norm=theirs is QWEN3, **options)
    weights, copied = other.state_dict(), {}
    for key in layer.state_dict():
        part, kind = key.split(".")
        names = ["q_proj", "k_proj", "v_proj"] if part == "qkv" else [part.replace("out", "o")]
        copied[key] = torch.cat([weights[f"{name}.{kind}"] for name in names])
    layer.load_state_dict(copied)
    x = some_input(length)
    cos_sin = make_rotary(config)(x, torch.arange(length)[None])
    mask = torch.zeros(length, length).masked_fill(~past(length), -torch.inf)[None, None]
    expected = other(x, position_embeddings=cos_sin, attention_mask=mask)
    same_on_both_paths(layer, [x], *expected, position=encoding("rotary", layer))
