"""The laws of encodings that rotate queries and keys, or are added to the scores."""

import pytest
import torch
from choices import POSITIONS, SIZES, position_of
from torch import Tensor, nn
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention

from headscope.nn import Rotary
from headscope.nn.position.biases import alibi_slopes, t5_buckets

both = pytest.mark.parametrize("interleaved", [False, True])


def rotary(head_dim: int = 8, block_size: int = 40, **options) -> Rotary:
    return position_of("rotary", head_dim=head_dim, block_size=block_size, **options)


def some(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def by_complex_numbers(x: Tensor, *, base: float, interleaved: bool, first: int = 0) -> Tensor:
    """x (..., T, D), its pairs as complex numbers, times e^(i t base^(-2 pair / D)), in float64."""
    length, width = x.shape[-2:]
    place = torch.arange(first, first + length, dtype=torch.float64)[:, None]
    angle = place * base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    shape = (-1, 2) if interleaved else (2, -1)
    pairs = x.double().unflatten(-1, shape)
    a, b = pairs.unbind(-1 if interleaved else -2)
    turned = torch.complex(a, b) * torch.polar(torch.ones_like(angle), angle)
    return torch.stack([turned.real, turned.imag], -1 if interleaved else -2).flatten(-2)


@both
@pytest.mark.parametrize("base", [10000.0, 50.0])
def test_a_pair_is_turned_as_a_complex_number_is(base, interleaved):
    for head_dim in [2, 6, 32]:
        position = rotary(head_dim, base=base, interleaved=interleaved)
        q, k = some(2, 3, 40, head_dim), some(2, 1, 40, head_dim)
        for ours, plain in zip(position.rotate(q, k), (q, k), strict=True):
            expected = by_complex_numbers(plain, base=base, interleaved=interleaved)
            torch.testing.assert_close(ours.double(), expected, rtol=0, atol=2e-6)


MOVED = {
    "as it is": lambda position: position,
    "bf16": lambda position: position.bfloat16(),
    "bf16, in a model": lambda position: nn.ModuleList([position]).to(torch.bfloat16)[0],
    "bf16 and back": lambda position: position.bfloat16().float(),
    "fp16": lambda position: position.half(),
}


@pytest.mark.parametrize("moved", MOVED.values(), ids=MOVED)
def test_in_bf16_only_the_result_is_rounded_however_far_out(moved):
    for interleaved in [False, True]:
        for autocast in [False, True]:
            position = moved(rotary(32, block_size=1100, interleaved=interleaved))
            assert position.cos.dtype == position.sin.dtype == torch.float32
            q, k = some(1, 2, 1100, 32).bfloat16(), some(1, 1, 1100, 32).bfloat16()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                turned = position.rotate(q, k)
            for ours, plain in zip(turned, (q, k), strict=True):
                assert ours.dtype == torch.bfloat16
                expected = by_complex_numbers(plain, base=10000.0, interleaved=interleaved)
                torch.testing.assert_close(ours.double(), expected, rtol=2**-8, atol=1e-6)


@both
def test_the_last_queries_are_turned_by_their_own_places(interleaved):
    for queries in [1, 3, 40]:
        q, k = some(2, 3, queries, 8), some(2, 1, 40, 8)
        ours, _ = rotary(interleaved=interleaved).rotate(q, k)
        expected = by_complex_numbers(q, base=10000.0, interleaved=interleaved, first=40 - queries)
        torch.testing.assert_close(ours.double(), expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("head_dim", [1, 7])
def test_an_odd_head_dim_is_refused(head_dim):
    with pytest.raises(ValueError, match=f"head_dim={head_dim} must be even"):
        rotary(head_dim)


# --- ALiBi ---


def test_slopes_are_those_of_bloom_for_any_number_of_heads():
    for heads in [1, 2, 3, 5, 6, 7, 12, 15, 16, 17, 20, 33]:
        slopes = alibi_slopes(heads)
        theirs = build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0, 1]
        torch.testing.assert_close(torch.tensor(slopes), theirs)
        assert torch.equal(position_of("alibi", heads=heads).slopes, torch.tensor(slopes))


def test_the_penalty_is_the_slope_times_the_distance():
    bias = position_of("alibi", heads=6).bias(4, 10)
    for head, slope in enumerate(alibi_slopes(6)):
        for place in range(6, 10):
            expected = [-slope * (place - key) for key in range(place + 1)]
            assert bias[head, place - 6, : place + 1].tolist() == pytest.approx(expected)


# --- T5's ---

BUCKETS = [(32, 128), (32, 17), (8, 20), (2, 2), (2, 100), (64, 1000), (6, 5)]


def by_t5(distance: Tensor, buckets: int, max_distance: int) -> Tensor:
    return T5Attention._relative_position_bucket(
        -distance, bidirectional=False, num_buckets=buckets, max_distance=max_distance
    )


def test_buckets_are_those_of_t5():
    for buckets, max_distance in BUCKETS:
        distance = torch.arange(2001)
        ours = t5_buckets(distance, buckets, max_distance)
        assert torch.equal(ours, by_t5(distance, buckets, max_distance))


def test_the_relative_bias_is_the_number_of_the_distances_bucket():
    for buckets, max_distance in BUCKETS:
        options = {"buckets": buckets, "max_distance": max_distance, "block_size": 40}
        position = position_of("relative", **options)
        bias = position.bias(30, 40)
        place, key = torch.arange(10, 40)[:, None], torch.arange(40)
        expected = position.table.weight[by_t5(place - key, buckets, max_distance)].permute(2, 0, 1)
        assert torch.equal(bias, expected)


def test_buckets_that_cannot_be_are_refused_with_both_numbers():
    for buckets, distance in [(0, 128), (1, 128), (-2, 128), (31, 128), (32, 16), (32, 0), (2, 1)]:
        with pytest.raises(ValueError, match=rf"buckets={buckets}\b.*max_distance={distance}\b"):
            position_of("relative", buckets=buckets, max_distance=distance)


# --- a table for each head ---


def test_the_bias_of_a_pair_of_places_is_its_entry_in_the_heads_table():
    position = position_of("head_bias")
    bias = position.bias(3, 8)
    for head in range(4):
        for query in range(3):
            assert torch.equal(bias[head, query], position.table[head, 5 + query, :8])


def test_a_fresh_table_is_zero_and_every_entry_learns():
    fresh = POSITIONS["head_bias"](**SIZES)
    assert not fresh.table.any()
    fresh.bias(10, 10).sum().backward()
    assert (fresh.table.grad == 1).all()
