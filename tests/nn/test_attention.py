"""The laws of attention: two ways of writing it are one, and nobody looks ahead."""

import pytest
import torch
from torch import Tensor, nn

from headscope.nn import MultiHeadAttention
from headscope.nn.attention import attend_explicit, attend_fused

ATTENDS = [attend_fused, attend_explicit]
SHAPES = [(1, 1, 1, 1), (2, 1, 5, 8), (2, 3, 7, 4), (1, 2, 64, 16), (3, 4, 33, 5)]  # B, H, T, D


def past(length: int) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool).tril()


def random_qkv(
    shape: tuple[int, ...], scale: float = 1.0, dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [
        (scale * torch.randn(shape, generator=generator)).to(dtype).requires_grad_()
        for _ in range(3)
    ]


def attention(*, embed_dim: int = 12, heads: int = 3, **options) -> MultiHeadAttention:
    """With weights far from zero, so that attention is far from even."""
    torch.manual_seed(0)
    layer = MultiHeadAttention(embed_dim=embed_dim, heads=heads, block_size=9, **options)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.7)
    return layer


@pytest.mark.parametrize("scale", [1.0, 8.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_fused_equals_explicit_in_outputs_and_gradients(shape, scale):
    inputs = random_qkv(shape, scale)
    weighting = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    results = []
    for attend in ATTENDS:
        mixed, _ = attend(*inputs, causal=past(shape[2]))
        results.append((mixed, *torch.autograd.grad((mixed * weighting).sum(), inputs)))
    for fused, explicit in zip(*results, strict=True):
        torch.testing.assert_close(fused, explicit, rtol=1e-4, atol=1e-5 * scale**2)


@pytest.mark.parametrize("attend", ATTENDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_in_bf16_both_are_within_a_hundredth_of_fp32(shape, attend):
    inputs = random_qkv(shape, dtype=torch.bfloat16)
    mixed, _ = attend(*inputs, causal=past(shape[2]))
    exact, _ = attend_explicit(*(part.double() for part in inputs), causal=past(shape[2]))
    assert mixed.dtype == torch.bfloat16
    torch.testing.assert_close(mixed.double(), exact, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("scale", [1.0, 30.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_of_weights_sum_to_one_and_the_future_is_exactly_zero(shape, scale, dropout, dtype):
    causal = past(shape[2])
    _, weights = attend_explicit(
        *random_qkv(shape, scale, dtype=dtype), causal=causal, dropout=dropout
    )
    assert (weights >= 0).all()
    assert (weights[..., ~causal] == 0).all()
    sums = weights.double().sum(dim=-1)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(sums, torch.ones_like(sums), rtol=0, atol=tolerance)


@pytest.mark.parametrize("attend", ATTENDS)
def test_no_gradient_comes_from_the_future(attend):
    layer = attention()
    layer.attend = attend
    x = torch.randn(1, 9, 12, requires_grad=True)
    output = layer(x)
    for query in range(9):
        (gradient,) = torch.autograd.grad(output[:, query].sum(), x, retain_graph=True)
        assert (gradient[:, query + 1 :] == 0).all()
        assert (gradient[:, : query + 1] != 0).any(dim=-1).all()


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("heads", [1, 3, 12])
@pytest.mark.parametrize("length", [1, 6, 9])
def test_equals_the_multi_head_attention_of_torch(heads, bias, length):
    layer = attention(heads=heads, qkv_bias=bias, out_bias=bias)
    other = nn.MultiheadAttention(12, heads, bias=bias, batch_first=True)
    ours = {"in_proj_weight": layer.qkv.weight, "out_proj.weight": layer.out_proj.weight}
    if bias:
        ours |= {"in_proj_bias": layer.qkv.bias, "out_proj.bias": layer.out_proj.bias}
    other.load_state_dict(ours)
    x = torch.randn(2, length, 12)
    expected, expected_weights = other(x, x, x, attn_mask=~past(length), average_attn_weights=False)
    torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-5)
    seen = []

    def attend(*args, **options):
        mixed, weights = attend_explicit(*args, **options)
        seen.append(weights)
        return mixed, weights

    layer.attend = attend
    torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(seen[0], expected_weights, rtol=1e-4, atol=1e-6)


def test_the_order_of_heads_means_nothing():
    layer, shuffled = attention(qkv_bias=True), attention(qkv_bias=True)
    order = torch.tensor([2, 0, 1])
    rows = torch.arange(12).view(3, 4)[order].flatten()  # each head's share of the width
    with torch.no_grad():
        all_rows = torch.cat([rows, rows + 12, rows + 24])
        shuffled.qkv.weight.copy_(layer.qkv.weight[all_rows])
        shuffled.qkv.bias.copy_(layer.qkv.bias[all_rows])
        shuffled.out_proj.weight.copy_(layer.out_proj.weight[:, rows])
    x = torch.randn(2, 9, 12)
    torch.testing.assert_close(shuffled(x), layer(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("embed_dim", [4, 12, 64])
@pytest.mark.parametrize("qkv_bias", [False, True])
@pytest.mark.parametrize("out_bias", [False, True])
def test_parameters_are_as_many_as_said(embed_dim, qkv_bias, out_bias):
    layer = attention(embed_dim=embed_dim, heads=2, qkv_bias=qkv_bias, out_bias=out_bias)
    expected = 4 * embed_dim**2 + 3 * embed_dim * qkv_bias + embed_dim * out_bias
    assert sum(parameter.numel() for parameter in layer.parameters()) == expected


@pytest.mark.parametrize(("embed_dim", "heads"), [(10, 3), (4, 8), (8, 0), (8, -2)])
def test_heads_that_do_not_divide_the_width_are_refused_with_both_numbers(embed_dim, heads):
    with pytest.raises(ValueError, match=rf"embed_dim={embed_dim}\b.*heads={heads}\b"):
        MultiHeadAttention(embed_dim=embed_dim, heads=heads, block_size=4)


def test_more_tokens_than_block_size_are_refused_with_both_numbers():
    layer = attention()
    assert layer(torch.randn(1, 9, 12)).shape == (1, 9, 12)
    with pytest.raises(ValueError, match=r"10 tokens.*block_size=9\b"):
        layer(torch.randn(1, 10, 12))


def test_the_mask_is_in_no_checkpoint():
    assert set(attention().state_dict()) == {"qkv.weight", "out_proj.weight"}


@pytest.mark.parametrize("attend", ATTENDS)
def test_dropout_acts_in_training_alone(attend):
    layer = attention(dropout=0.5)
    layer.attend = attend
    x = torch.randn(2, 9, 12)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))
    plain = attention()
    torch.testing.assert_close(layer(x), plain(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("attend", ATTENDS)
def test_dropout_keeps_the_mean(attend):
    q, k, v = (part.detach() for part in random_qkv((1, 1, 6, 4)))
    torch.manual_seed(0)
    many = [part.expand(20_000, 1, 6, 4) for part in (q, k, v)]
    mixed, _ = attend(*many, causal=past(6), dropout=0.5)
    expected, _ = attend_explicit(q, k, v, causal=past(6))
    torch.testing.assert_close(mixed.mean(dim=0), expected[0], rtol=0, atol=0.05)
