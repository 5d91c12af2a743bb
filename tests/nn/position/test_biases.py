"""The laws of encodings that are added to the scores."""

import pytest
import torch
from choices import POSITIONS, SIZES, position_of
from torch import Tensor
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention

from headscope.nn.position.biases import alibi_slopes, t5_buckets

# --- ALiBi ---


def test_slopes_are_those_of_bloom_for_any_number_of_heads():
    for heads in [1, 2, 3, 5, 6, 7, 12, 15, 16, 17, 20, 33]:
        slopes = alibi_slopes(heads)
        assert len(slopes) == len(set(slopes)) == heads
        assert all(0 < slope < 1 for slope in slopes)
        theirs = build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0, 1]
        torch.testing.assert_close(torch.tensor(slopes), theirs)
        assert torch.equal(position_of("alibi", heads=heads).slopes, torch.tensor(slopes))


def test_the_penalty_is_the_slope_times_the_distance():
    heads = 6
    bias = position_of("alibi", heads=heads).bias(4, 10)
    assert bias.shape == (heads, 4, 10)
    for head, slope in enumerate(alibi_slopes(heads)):
        for query in range(4):
            place = 6 + query
            for key in range(place + 1):
                assert bias[head, query, key].item() == pytest.approx(-slope * (place - key))
            assert bias[head, query, place] == 0


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
        half = buckets // 2
        assert ours[:half].tolist() == list(range(half))
        assert (ours.diff() >= 0).all()
        assert (ours[max_distance:] == buckets - 1).all()
        assert ours.min() == 0
        assert torch.equal(
            t5_buckets(distance.view(3, 667), buckets, max_distance), ours.view(3, 667)
        )


def test_the_relative_bias_is_the_number_of_the_distances_bucket():
    for buckets, max_distance in BUCKETS:
        options = {"buckets": buckets, "max_distance": max_distance, "block_size": 40}
        position = position_of("relative", **options)
        bias = position.bias(30, 40)
        place, key = torch.arange(10, 40)[:, None], torch.arange(40)
        expected = position.table.weight[by_t5(place - key, buckets, max_distance)].permute(2, 0, 1)
        assert torch.equal(bias, expected)
        assert torch.equal(bias[:, 1:, 1:], bias[:, :-1, :-1])


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
