"""Position encodings: the laws of all, and each against its formula, or that of BLOOM or T5."""

import math
from itertools import product

import pytest
import torch
from choices import POSITIONS, position_of
from torch import Tensor, nn
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention

from headscope.errors import UserError
from headscope.nn import Position, add_position_over_length
from headscope.nn.position.absolute import sinusoidal_table

every = pytest.mark.parametrize("name", POSITIONS)


def some(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


PLAIN = {"q": some(2, 4, 10, 4), "k": some(2, 2, 10, 4), "embeddings": some(2, 10, 16)}
"""What no position has touched."""


def encoded(position: Position, length: int = 10, queries: int = 10) -> dict[str, Tensor]:
    """What `position` does with the first `length` places of PLAIN, the last `queries` of them."""
    q, k, x = (numbers[..., :length, :] for numbers in PLAIN.values())
    queries = min(queries, length)
    q, k = position.rotate(q[:, :, length - queries :], k)
    bias = position.bias(queries, length)
    bias = torch.zeros(1, queries, length) if bias is None else bias
    return {"embeddings": position(x), "q": q, "k": k, "bias": bias}


def acts(position: Position) -> set[str]:
    """Which of the three ways of an encoding this one takes."""
    done = encoded(position)
    changed = {part for part in PLAIN if not torch.equal(done[part], PLAIN[part])}
    if position.bias(10, 10) is not None:
        changed.add("bias")
    return {"turns" if part in ("q", "k") else part for part in changed}


@every
def test_it_does_one_of_three_things_and_none_does_nothing(name):
    assert len(acts(position_of(name))) == (name != "none")


@every
def test_a_prefix_is_encoded_as_in_the_whole_also_with_fewer_queries_than_keys(name):
    position = position_of(name)
    whole = encoded(position)
    for length in (1, 6, 10):
        for queries in {1, length // 2 + 1, length}:
            part, first = encoded(position, length, queries), length - queries
            assert torch.equal(part["embeddings"], whole["embeddings"][:, :length])
            assert torch.equal(part["q"], whole["q"][:, :, first:length])
            assert torch.equal(part["k"], whole["k"][:, :, :length])
            assert torch.equal(part["bias"], whole["bias"][:, first:length, :length])


@every
def test_limit_says_whether_what_was_learned_serves_a_larger_block_size(name):
    """It does when the parameters fit there and encode as before the places that they know."""
    small, large = position_of(name), position_of(name, block_size=20)
    try:
        large.load_state_dict(small.state_dict())
    except RuntimeError:
        serves = False
    else:
        before, after = encoded(small), encoded(large)
        serves = all(torch.equal(before[part], after[part]) for part in before)
    assert (small.limit is None) == serves
    assert serves or small.limit.strip()


@every
def test_texts_that_are_too_long_and_queries_without_keys_are_refused(name):
    position, q, k = position_of(name), some(2, 4, 3, 4), some(2, 2, 12, 4)
    calls = {
        "embeddings": [(position, (some(2, 3, 16), 8))],
        "turns": [(position.rotate, (q, k[:, :, :3], 8)), (position.rotate, (q, k[:, :, :2]))],
        "bias": [(position.bias, (1, 11)), (position.bias, (3, 2))],
    }
    for way in acts(position):
        for call, inputs in calls[way]:
            with pytest.raises(UserError, match=r"11 tokens.*block_size=10\b|3 queries.*2 keys"):
                call(*inputs)


REFUSED = [
    *product(("sinusoidal", "rotary"), ({"base": base} for base in (0.0, math.inf, math.nan))),
    ("rotary", {"head_dim": 7}),
    *(("digits", {"base": base}) for base in (1, -2)),
    *(("digits", {"embed_dim": w, "base": b, "block_size": b**w + 1}) for b, w in [(2, 3), (3, 2)]),
    *(("relative", {"buckets": count, "max_distance": 9}) for count in (0, 1, 31, 32)),
]


def test_options_that_cannot_be_are_refused_with_all_numbers():
    for name, options in REFUSED:
        with pytest.raises(UserError) as refused:
            position_of(name, **options)
        for key, value in options.items():
            assert f"{key}={value}" in str(refused.value)
        if "block_size" in options:
            position_of(name, **(options | {"block_size": options["block_size"] - 1}))


# --- their formulas ---


def by_complex_numbers(x: Tensor, *, base: float, interleaved: bool) -> Tensor:
    """x (..., T, D), its pairs as complex numbers, times e^(i t base^(-2 pair / D)), in float64."""
    length, width = x.shape[-2:]
    place = torch.arange(length, dtype=torch.float64)[:, None]
    angle = place * base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    shape = (-1, 2) if interleaved else (2, -1)
    pairs = x.double().unflatten(-1, shape)
    a, b = pairs.unbind(-1 if interleaved else -2)
    turned = torch.complex(a, b) * torch.polar(torch.ones_like(angle), angle)
    return torch.stack([turned.real, turned.imag], -1 if interleaved else -2).flatten(-2)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "autocast"])
def test_a_pair_is_turned_as_a_complex_number_is_and_only_the_result_is_rounded(
    precision, interleaved
):
    dtype = torch.float32 if precision == "fp32" else torch.bfloat16
    close = {"rtol": 0, "atol": 2e-6} if precision == "fp32" else {"rtol": 2**-8, "atol": 1e-6}
    for head_dim, base in ((2, 50.0), (6, 10000.0), (32, 10000.0)):
        options = {"head_dim": head_dim, "base": base, "interleaved": interleaved}
        position = position_of("rotary", **options, block_size=1100)
        if precision == "bf16":
            nn.ModuleList([position]).to(dtype)
        q, k = (some(2, heads, 1100, head_dim).to(dtype) for heads in (3, 1))
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "autocast"):
            turned = position.rotate(q, k)
        for ours, plain in zip(turned, (q, k), strict=True):
            assert ours.dtype == dtype
            expected = by_complex_numbers(plain, base=base, interleaved=interleaved)
            torch.testing.assert_close(ours.double(), expected, **close)


def test_the_penalty_is_the_slope_of_bloom_times_the_distance():
    distance = torch.arange(6, 10)[:, None] - torch.arange(10)
    past = distance >= 0
    for heads in range(1, 34):
        slopes = build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0, 1]
        bias = position_of("alibi", heads=heads).bias(4, 10)
        torch.testing.assert_close(bias[:, past], -slopes[:, None] * distance[past])


BUCKETS = [(32, 128), (32, 17), (8, 20), (2, 2), (2, 100), (64, 1000), (6, 5)]


def test_the_relative_bias_is_the_number_of_t5s_bucket_of_the_distance():
    for buckets, max_distance in BUCKETS:
        sizes = {"max_distance": max_distance, "block_size": 2001}
        position = position_of("relative", buckets=buckets, **sizes)
        distance = torch.arange(1971, 2001)[:, None] - torch.arange(2001)
        options = {"num_buckets": buckets, "max_distance": max_distance}
        bucket = T5Attention._relative_position_bucket(-distance, bidirectional=False, **options)
        expected = position.table.weight[bucket].permute(2, 0, 1)
        assert torch.equal(position.bias(30, 2001), expected)


def test_the_bias_of_a_pair_of_places_is_its_entry_in_the_heads_table():
    position = position_of("head_bias")
    assert torch.equal(position.bias(3, 8), position.table[:, 5:8, :8])


@pytest.mark.parametrize(("width", "base"), [(1, 10000.0), (33, 500.0)])
def test_the_table_is_the_papers_formula_however_far_out(width, base):
    table = sinusoidal_table(30_000, width, base)
    for position in (*range(9), 29_999):  # in float32, this angle would be wrong by 0.001
        for dimension in range(width):
            angle = position / base ** (2 * (dimension // 2) / width)
            expected = math.cos(angle) if dimension % 2 else math.sin(angle)
            assert table[position, dimension].item() == pytest.approx(expected, abs=1e-7)


def test_what_is_added_is_the_table_and_in_bf16_the_table_rounded_once():
    zeros = torch.zeros(2, 7, 16)
    learned, sinusoidal = position_of("learned"), position_of("sinusoidal", base=7.0)
    assert torch.equal(learned(zeros)[1], learned.table.weight[:7])
    assert torch.equal(sinusoidal(zeros + 1)[1], sinusoidal_table(7, 16, 7.0) + 1)
    rounded = position_of("sinusoidal", block_size=1000).bfloat16()(torch.zeros(1, 1000, 16))
    assert torch.equal(rounded[0].bfloat16(), sinusoidal_table(1000, 16, 10000.0).bfloat16())


def added(name: str, length: int = 10, **options) -> torch.Tensor:
    """What is added to the embeddings of `length` tokens, (T, C)."""
    return position_of(name, **options)(torch.zeros(1, length, 16))[0]


def test_index_adds_numbers_from_1_and_normalized_their_share_of_block_size():
    numbers = torch.arange(1.0, 11)[:, None].expand(-1, 16)
    assert torch.equal(added("index"), numbers)
    torch.testing.assert_close(added("normalized"), numbers / 10)


@pytest.mark.parametrize("base", [2, 10])
def test_digits_are_those_of_the_number_the_lowest_first(base):
    digits = added("digits", 700, block_size=700, base=base).long()
    expected = torch.arange(700)[:, None] // base ** torch.arange(10) % base
    assert torch.equal(digits[:, :10], expected)
    assert not digits[:, 10:].any()


def test_over_its_length_every_text_runs_from_zero_to_one_whatever_its_padding():
    added = add_position_over_length(torch.zeros(3, 5, 3), torch.tensor([5, 3, 1]))
    rows = [[0, 0.25, 0.5, 0.75, 1], [0, 0.5, 1, 1.5, 2], [0, 1, 2, 3, 4]]
    assert torch.equal(added, torch.tensor(rows)[..., None].expand(3, 5, 3))
    assert torch.equal(add_position_over_length(torch.ones(1, 1, 2)), torch.ones(1, 1, 2))
    for lengths in ([0, 3], [4, 1], [1]):
        with pytest.raises(UserError, match="lengths="):
            add_position_over_length(torch.zeros(2, 3, 4), torch.tensor(lengths))
