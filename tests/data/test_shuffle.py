"""The laws of a shuffle: every number has one place, and nothing else can be told of where."""

import math
from collections import Counter
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headscope.data.shuffle import Shuffle

LARGE = [10_007, 2**20, 10**9, 2**40, 2**40 + 5]
LOOKED_AT = 10_000
"""Places of a large shuffle that are looked at; a figure of theirs strays by about its root."""


def shuffle(size: int, *key: int) -> Shuffle:
    return Shuffle(size, np.random.default_rng(key))


def portions(size: int, *key: int) -> np.ndarray:
    """How far into the range the first numbers of a shuffle are, each from 0 to 1."""
    return (shuffle(size, *key)(np.arange(LOOKED_AT)) + 0.5) / size


def strays(counts: np.ndarray) -> float:
    """By how many standard deviations counts are less even than chance makes them (chi squared)."""
    expected = counts.mean()
    freedom = counts.size - 1
    return (((counts - expected) ** 2 / expected).sum() - freedom) / math.sqrt(2 * freedom)


@settings(max_examples=100)
@given(st.integers(1, 3000), st.integers(0, 2**32))
def test_every_number_has_one_place(size: int, key: int) -> None:
    assert sorted(shuffle(size, key)(np.arange(size)).tolist()) == list(range(size))


def test_in_a_large_one_too_numbers_are_in_range_and_no_two_the_same() -> None:
    for size in LARGE:
        places = np.concatenate([np.arange(5000), np.arange(size - 5000, size)])
        found = shuffle(size, 1)(places)
        assert found.dtype == np.int64
        assert found.min() >= 0
        assert found.max() < size
        assert len(set(found.tolist())) == len(places)


@settings(max_examples=50)
@given(st.integers(1, 2**40), st.data())
def test_a_place_alone_holds_what_it_holds_among_others(size: int, data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(0, size - 1), min_size=2, max_size=8))
    together = shuffle(size, 1)(np.array(places))
    assert together.tolist() == [int(shuffle(size, 1)(np.array([place]))[0]) for place in places]


def test_every_place_is_as_likely_for_every_number() -> None:
    orders = Counter(tuple(shuffle(4, key)(np.arange(4)).tolist()) for key in range(5000))
    assert strays(np.array([orders[order] for order in permutations(range(4))])) < 5
    counts = np.zeros((50, 50))
    for key in range(5000):
        counts[np.arange(50), shuffle(50, key)(np.arange(50))] += 1
    assert strays(counts) < 5


@pytest.mark.parametrize("size", LARGE[1:])
def test_the_first_places_are_spread_over_the_range(size: int) -> None:
    for key in range(5):
        assert strays(np.histogram(portions(size, key), bins=100, range=(0, 1))[0]) < 5


@pytest.mark.parametrize("size", LARGE)
def test_a_place_says_nothing_of_one_near_it(size: int) -> None:
    for key, apart in product(range(5), (1, 2, 12, 64)):
        found = portions(size, key)
        steps = (found[apart:] - found[:-apart]) % 1
        assert strays(np.histogram(steps, bins=100, range=(0, 1))[0]) < 5
        assert abs(np.corrcoef(found[apart:], found[:-apart])[0, 1]) < 5 / math.sqrt(LOOKED_AT)


@pytest.mark.parametrize("size", LARGE)
def test_shuffles_of_different_keys_have_nothing_in_common(size: int) -> None:
    for one, other in (((0, 0), (0, 1)), ((0, 0), (1, 0)), ((7, 3), (7, 4))):
        related = np.corrcoef(portions(size, *one), portions(size, *other))[0, 1]
        assert abs(related) < 5 / math.sqrt(LOOKED_AT)
