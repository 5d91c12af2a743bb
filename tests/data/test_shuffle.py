"""The laws of a shuffle: every number has one place, and places look random."""

import math
from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headscope.data.batches import Shuffle

LARGE = [10_007, 2**20, 10**9, 2**40, 2**40 + 5]
LOOKED_AT = 10_000
"""Number of places of a large shuffle that are looked at."""


def shuffle(size: int, *key: int) -> Shuffle:
    return Shuffle(size, np.random.default_rng(key))


def strays(counts: np.ndarray) -> float:
    """By how many standard deviations counts are less even than chance makes them (chi squared)."""
    expected = counts.mean()
    freedom = counts.size - 1
    return (((counts - expected) ** 2 / expected).sum() - freedom) / math.sqrt(2 * freedom)


@settings(max_examples=100)
@given(st.integers(1, 3000), st.integers(0, 2**32), st.data())
def test_every_number_has_one_place_also_alone(size: int, key: int, data: st.DataObject) -> None:
    together = shuffle(size, key)(np.arange(size))
    assert sorted(together.tolist()) == list(range(size))
    place = data.draw(st.integers(0, size - 1))
    assert shuffle(size, key)(np.array([[place]])).tolist() == [[together[place]]]


def test_every_place_is_as_likely_for_every_number() -> None:
    orders = Counter(tuple(shuffle(4, key)(np.arange(4)).tolist()) for key in range(5000))
    assert strays(np.array([orders[order] for order in permutations(range(4))])) < 5
    counts = np.zeros((50, 50))
    for key in range(5000):
        counts[np.arange(50), shuffle(50, key)(np.arange(50))] += 1
    assert strays(counts) < 5


@pytest.mark.parametrize("size", LARGE)
def test_in_a_large_one_too_every_number_has_at_most_one_place(size: int) -> None:
    found = shuffle(size, 1)(np.concatenate([np.arange(5000), np.arange(size - 5000, size)]))
    assert found.dtype == np.int64
    assert len(set(found.tolist())) == len(found)
    assert 0 <= found.min() <= found.max() < size


@pytest.mark.parametrize("size", LARGE)
def test_a_place_says_nothing_of_its_neighbours_or_of_another_key(size: int) -> None:
    def portions(*key: int) -> np.ndarray:
        """How far into the range the first numbers are, each from 0 to 1."""
        return (shuffle(size, *key)(np.arange(LOOKED_AT)) + 0.5) / size

    def related(one: np.ndarray, other: np.ndarray) -> bool:
        return abs(np.corrcoef(one, other)[0, 1]) > 5 / math.sqrt(LOOKED_AT)

    def even(places: np.ndarray) -> bool:
        return strays(np.histogram(places, bins=100, range=(0, 1))[0]) < 5

    for key in range(5):
        found = portions(key)
        assert size == LARGE[0] or even(found)  # LOOKED_AT are nearly all places of the smallest
        for apart in (1, 2, 12, 64):
            assert even((found[apart:] - found[:-apart]) % 1)
            assert not related(found[apart:], found[:-apart])
    for one, other in (((0, 0), (0, 1)), ((0, 0), (1, 0)), ((7, 3), (7, 4))):
        assert not related(portions(*one), portions(*other))
