"""What is a function of the step alone: learning rates and seeds."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headscope.seeds import mixed_seed
from headscope.training.module import seed
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


def test_warmup_linear_rises_stays_constant_and_falls():
    settings = {"max_steps": 10, "warmup_steps": 1, "cooldown": 0.5, "final_fraction": 0.2}
    rates = [WarmupLinear(**settings)(step) for step in (0, 1, 5, 6, 10, 12)]
    assert rates == pytest.approx([0.5, 1, 1, 0.84, 0.2, 0.2])
    for cooldown, last in ((0.0, 1), (1.0, 0.2)):
        assert WarmupLinear(**settings | {"cooldown": cooldown})(10) == pytest.approx(last)
    for wrong in (-0.1, 1.1):
        with pytest.raises(ValueError, match="cooldown"):
            WarmupLinear(**settings | {"cooldown": wrong})


def test_every_seed_step_and_rank_gets_different_random_numbers():
    seeds = {
        mixed_seed(seed, step, rank)
        for seed in (0, 1, 2, 1337, 2**31)
        for step in (*range(500), 10**6, 2**40)
        for rank in range(8)
    }
    assert len(seeds) == 5 * 502 * 8
    draws = {float(torch.rand((), generator=torch.Generator().manual_seed(s))) for s in seeds}
    assert len(draws) > 0.99 * len(seeds)  # some 24-bit numbers are equal by chance


@given(st.integers(-(2**63), 2**63), st.integers(0, 2**63), st.integers(0, 2**63))
def test_torch_accepts_every_mixed_seed(number, step, rank):
    mixed = mixed_seed(number, step, rank)
    seed(torch.device("cpu"), mixed)
    assert torch.rand(()) == torch.rand((), generator=torch.Generator().manual_seed(mixed))
