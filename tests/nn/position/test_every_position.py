"""The laws that hold for every position encoding."""

import re
from math import inf, nan

import pytest
import torch
from choices import POSITIONS, position_of
from torch import Tensor

from headscope.errors import UserError
from headscope.nn import Position

every = pytest.mark.parametrize("name", POSITIONS)


def some(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


PLAIN = {"q": some(2, 4, 10, 4), "k": some(2, 2, 10, 4), "embeddings": some(2, 10, 16)}
"""What no position has touched."""


def encoded(position: Position, length: int = 10, queries: int = 10) -> dict[str, Tensor]:
    """What `position` does with the first `length` places of PLAIN; the queries are the last
    `queries` of them."""
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
def test_parameters_are_as_many_as_the_docstring_says(name):
    said = re.search(r"Parameters: ([^.;]*)[.;]", POSITIONS[name].__doc__)
    assert said is not None
    sizes = {"none": 0, "C": 16, "H": 4, "D": 4, "block_size": 10, "buckets": 32}
    expected = eval(said[1].replace("^", "**"), sizes)
    assert sum(parameter.numel() for parameter in position_of(name).parameters()) == expected


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
            with pytest.raises(UserError, match=r"11 tokens.*block_size=10\b|\(3\).*\(2\)"):
                call(*inputs)


REFUSED = [
    *((name, {"base": base}) for name in ("sinusoidal", "rotary") for base in (0.0, inf, nan)),
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
