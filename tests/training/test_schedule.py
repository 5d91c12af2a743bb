"""The shapes of the learning rate schedules."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headscope.training.schedule import WarmupCosine, WarmupLinear


def nanogpt(step: int, *, max_steps: int, warmup_steps: int, final_fraction: float) -> float:
    """`get_lr` in nanoGPT's train.py, for a learning rate of 1."""
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    if step > max_steps:
        return final_fraction
    ratio = (step - warmup_steps) / (max_steps - warmup_steps)
    return final_fraction + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (1 - final_fraction)


@pytest.mark.parametrize(("last", "warmup"), [(2000, 100), (50, 0), (50, 49), (7, 3), (1, 0)])
@pytest.mark.parametrize("final", [0.0, 0.1, 1.0])
def test_warmup_cosine_equals_nanogpts_schedule(last, warmup, final):
    settings = {"max_steps": last, "warmup_steps": warmup, "final_fraction": final}
    for step in (*range(last + 10), 10 * last):
        ours, theirs = WarmupCosine(**settings)(step), nanogpt(step, **settings)
        assert ours == pytest.approx(theirs, abs=1e-12)


@given(st.integers(1, 300), st.integers(0, 40), st.floats(0, 1), st.floats(0, 1))
def test_warmup_linear_rises_stays_constant_and_falls(max_steps, warmup_steps, cooldown, final):
    settings = {"warmup_steps": warmup_steps, "cooldown": cooldown, "final_fraction": final}
    schedule = WarmupLinear(max_steps=max_steps, **settings)
    rates = [schedule(step) for step in range(max_steps + 3)]
    top = rates.index(max(rates))
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert all(a >= b - 1e-12 for a, b in pairwise(rates[top:]))
    assert 0 < rates[0] <= 1
    assert max(rates) <= 1
    for step, rate in enumerate(rates[:max_steps]):
        if warmup_steps <= step <= (1 - cooldown) * max_steps - 1:
            assert rate == 1
    if cooldown and max_steps > warmup_steps:
        assert rates[max_steps] == pytest.approx(final)


def test_warmup_linear_equals_values_computed_by_hand():
    settings = {"max_steps": 10, "warmup_steps": 1, "cooldown": 0.5, "final_fraction": 0.2}
    rates = [WarmupLinear(**settings)(step) for step in (0, 1, 5, 6, 10, 12)]
    assert rates == pytest.approx([0.5, 1, 1, 0.84, 0.2, 0.2])
    for wrong in (-0.1, 1.1):
        with pytest.raises(ValueError, match="cooldown"):
            WarmupLinear(**settings | {"cooldown": wrong})
