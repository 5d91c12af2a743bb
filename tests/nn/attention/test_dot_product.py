"""The laws of the two ways of writing dot-product attention: they are one."""

import pytest
import torch
from attention_layers import past
from torch import Tensor

from headscope.nn.attention.dot_product import attend_explicit, attend_fused

both = pytest.mark.parametrize("attend", [attend_fused, attend_explicit])
BF16_ROUNDING = torch.finfo(torch.bfloat16).eps / 2
SHAPES = [  # B, H, K, T, S, D
    (1, 1, 1, 1, 1, 1),
    (2, 3, 3, 7, 7, 4),
    (1, 2, 2, 64, 64, 16),
    (3, 4, 4, 33, 33, 5),
    (2, 6, 2, 7, 7, 4),
    (2, 4, 1, 9, 9, 8),
    (2, 6, 2, 4, 9, 4),
    (1, 2, 2, 1, 64, 16),
]


def qkv(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    batch, heads, kv_heads, queries, keys, width = shape
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(batch, *axes, width, generator=generator).to(dtype).requires_grad_()
        for axes in ((heads, queries), (kv_heads, keys), (kv_heads, keys))
    ]


def some_bias(shape: tuple[int, ...], heads: int) -> Tensor:
    queries, keys = shape[3:5]
    generator = torch.Generator().manual_seed(1)
    return (2 * torch.randn(heads, queries, keys, generator=generator)).requires_grad_()


@pytest.mark.parametrize("bias", [None, "shared", "per_head"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_fused_equals_explicit_in_outputs_and_gradients(shape, causal, bias):
    inputs, options = qkv(shape), {}
    if causal:
        options["causal"] = past(*shape[3:5])
    if bias:
        options["bias"] = some_bias(shape, 1 if bias == "shared" else shape[1])
        inputs.append(options["bias"])
    weighting = torch.randn(inputs[0].shape, generator=torch.Generator().manual_seed(2))
    for scale in (0.1, 1.0, 3.0):
        results = []
        for attend in (attend_fused, attend_explicit):
            mixed, _ = attend(*inputs[:3], scale=scale, **options)
            results.append((mixed, *torch.autograd.grad((mixed * weighting).sum(), inputs)))
        for fused, explicit in zip(*results, strict=True):
            torch.testing.assert_close(fused, explicit, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [1.0, 4.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_of_bf16_both_are_within_a_rounding_of_fp64(shape, size):
    q, k, v = (part.detach() for part in qkv(shape, torch.bfloat16))
    options = {"causal": past(*shape[3:5]), "scale": size * shape[5] ** -0.5}
    exact, _ = attend_explicit(q.double(), k.double(), v.double(), **options)
    for attend in (attend_fused, attend_explicit):
        mixed, _ = attend(q, k, v, **options)
        assert mixed.dtype == torch.bfloat16
        assert (mixed - exact).norm() < BF16_ROUNDING * exact.norm()


@both
def test_scale_one_is_the_bare_dot_product_and_scale_multiplies_it(attend):
    q, k, v = qkv((2, 3, 3, 5, 7, 4))
    for scale in (1.0, 0.25):
        scores = torch.einsum("bhtd,bhsd->bhts", q, k) * scale
        expected = torch.einsum("bhts,bhsd->bhtd", scores.softmax(-1), v)
        torch.testing.assert_close(attend(q, k, v, scale=scale)[0], expected)


@both
@pytest.mark.parametrize("causal", [None, past(5)])
def test_a_key_head_serves_the_query_heads_of_its_group_in_a_row(attend, causal):
    q, k, v = qkv((2, 6, 2, 5, 5, 4))
    mixed, _ = attend(q, k, v, scale=0.5, causal=causal)
    for head in range(6):
        group = slice(head // 3, head // 3 + 1)
        alone, _ = attend(q[:, head : head + 1], k[:, group], v[:, group], scale=0.5, causal=causal)
        torch.testing.assert_close(mixed[:, head : head + 1], alone)


@both
@pytest.mark.parametrize("hidden", [None, "causal", "mask"])
def test_dropout_keeps_the_mean(attend, hidden):
    q, k, v = (part.detach() for part in qkv((1, 4, 2, 6, 6, 4)))
    torch.manual_seed(0)
    options = {"scale": 0.5} | ({hidden: past(6)} if hidden else {})
    many = [part.expand(2_000, *part.shape[1:]) for part in (q, k, v)]
    mixed, _ = attend(*many, dropout=0.5, **options)
    expected, _ = attend_explicit(q, k, v, **options)
    assert not torch.equal(mixed[0], mixed[1])
    off = (mixed.mean(dim=0) - expected[0]).abs()
    assert (off < 5 * mixed.std(dim=0) / 2_000**0.5).all()
