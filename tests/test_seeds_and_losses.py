"""Seeds of training steps, and the computation of losses."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headscope.nn.loss import bits_per_byte, next_token_loss
from headscope.seeds import mixed_seed
from headscope.training.module import seed


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
    torch.Generator().manual_seed(mixed_seed(number, step, rank))


def test_seed_gives_the_same_numbers_as_torch_manual_seed():
    seed(torch.device("cpu"), 7)
    ours = torch.rand(3)
    torch.manual_seed(7)
    assert torch.equal(ours, torch.rand(3))


def test_the_loss_is_the_mean_cross_entropy_in_nats():
    logits = torch.log(torch.tensor([[[0.5, 0.25, 0.25], [0.1, 0.2, 0.7]]]))
    targets = torch.tensor([[1, 2]])
    losses = [-math.log(0.25), -math.log(0.7)]
    assert next_token_loss(logits, targets).item() == pytest.approx(sum(losses) / 2)
    total = next_token_loss(logits, targets, reduction="sum")
    assert total.item() == pytest.approx(sum(losses))
    assert next_token_loss(logits.bfloat16(), targets).dtype == torch.float32
    # With two bytes per token, the loss per token doubles and bits per byte stay the same.
    for tokens, bytes_per_token in ((1000, 1), (500, 2)):
        nats = tokens * math.log(256**bytes_per_token)
        assert bits_per_byte(nats, 1000) == pytest.approx(8)
    assert math.isnan(bits_per_byte(3.0, 0))
