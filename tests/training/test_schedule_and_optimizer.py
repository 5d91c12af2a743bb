"""The laws of what training computes: rates, decay, seeds, losses."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from headscope.nn import GPT, Learned
from headscope.nn.loss import bits_per_byte, next_token_loss
from headscope.training.module import step_seed
from headscope.training.optimizer import adamw
from headscope.training.schedule import warmup_cosine

# --- schedule ---


def nanogpt(step: int, *, max_steps: int, warmup_steps: int, final_fraction: float) -> float:
    """`get_lr` of nanoGPT's train.py, with a rate of 1."""
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    if step > max_steps:
        return final_fraction
    ratio = (step - warmup_steps) / (max_steps - warmup_steps)
    return final_fraction + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (1 - final_fraction)


PLANS = [
    {"max_steps": max_steps, "warmup_steps": warmup, "final_fraction": final}
    for max_steps, warmup in [(2000, 100), (50, 0), (50, 49), (7, 3), (1, 0)]
    for final in (0.0, 0.1, 1.0)
]


@pytest.mark.parametrize("plan", PLANS)
def test_the_schedule_is_nanogpts(plan):
    for step in range(plan["max_steps"] + 10):
        assert warmup_cosine(step, **plan) == pytest.approx(nanogpt(step, **plan), abs=1e-12)


@pytest.mark.parametrize("plan", PLANS)
def test_it_starts_low_peaks_after_the_warm_up_and_ends_at_the_final_fraction(plan):
    last, peak = plan["max_steps"], plan["warmup_steps"]
    assert warmup_cosine(0, **plan) == 1 / (peak + 1)
    assert warmup_cosine(peak, **plan) == 1.0
    assert warmup_cosine(last, **plan) == pytest.approx(plan["final_fraction"], abs=1e-12)
    assert warmup_cosine(10 * last, **plan) == pytest.approx(plan["final_fraction"], abs=1e-12)


@given(st.integers(1, 300), st.integers(0, 400), st.floats(0, 1))
def test_it_rises_then_falls_and_stays_within_bounds(max_steps, warmup_steps, final):
    rates = [
        warmup_cosine(step, max_steps=max_steps, warmup_steps=warmup_steps, final_fraction=final)
        for step in range(max_steps + 3)
    ]
    rising, falling = rates[: warmup_steps + 1], rates[warmup_steps:]
    assert all(a < b for a, b in pairwise(rising))
    assert all(a >= b - 1e-12 for a, b in pairwise(falling))
    assert rates[0] > 0
    assert max(rates) <= 1.0
    assert all(rate >= final - 1e-12 for rate in falling)


# --- optimizer ---

SETTINGS = {"lr": 0.01, "weight_decay": 0.1, "beta1": 0.8, "beta2": 0.95}


def model(**options) -> GPT:
    sizes = {"vocab_size": 7, "block_size": 5, "embed_dim": 4, "layers": 2, "heads": 2}
    return GPT(**sizes, bias=True, qkv_bias=True, position=Learned, **options)


@pytest.mark.parametrize("tied", [True, False])
def test_every_parameter_is_in_one_group_and_vectors_have_no_decay(tied):
    parameters = list(model(tied_head=tied).parameters())
    gpt = model(tied_head=tied)
    groups = adamw(gpt, **SETTINGS).param_groups
    listed = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(listed) == sorted(map(id, gpt.parameters()))
    assert len(listed) == len(parameters)
    for group in groups:
        assert group["lr"] == 0.01
        assert group["betas"] == (0.8, 0.95)
        for parameter in group["params"]:
            assert group["weight_decay"] == (0.1 if parameter.dim() >= 2 else 0.0)


def test_without_a_gradient_matrices_shrink_by_lr_times_decay_and_vectors_stay():
    gpt = model()
    before = {name: parameter.clone() for name, parameter in gpt.named_parameters()}
    for parameter in gpt.parameters():
        parameter.grad = torch.zeros_like(parameter)
    adamw(gpt, **SETTINGS).step()
    for name, parameter in gpt.named_parameters():
        kept = 1 - 0.01 * 0.1 if parameter.dim() >= 2 else 1.0
        torch.testing.assert_close(parameter.detach(), kept * before[name].detach())


def test_the_first_step_is_as_long_as_the_rate_whatever_the_gradient():
    layer = nn.Linear(3, 1, bias=False)
    before = layer.weight.detach().clone()
    layer.weight.grad = torch.tensor([[1e-3, -5.0, 400.0]])
    adamw(layer, **(SETTINGS | {"weight_decay": 0.0})).step()
    moved = before - layer.weight.detach()
    torch.testing.assert_close(moved, 0.01 * layer.weight.grad.sign(), rtol=1e-3, atol=0)


def test_frozen_parameters_are_left_out():
    gpt = model()
    gpt.position.table.weight.requires_grad_(False)
    listed = [p for group in adamw(gpt, **SETTINGS).param_groups for p in group["params"]]
    assert all(parameter is not gpt.position.table.weight for parameter in listed)


# --- seeds ---


def test_every_seed_step_and_rank_draws_its_own_numbers():
    seeds = {
        step_seed(seed, step, rank)
        for seed in (0, 1, 2, 1337, 2**31)
        for step in (*range(500), 10**6, 2**40)
        for rank in range(8)
    }
    assert len(seeds) == 5 * 502 * 8
    draws = {float(torch.rand((), generator=torch.Generator().manual_seed(s))) for s in seeds}
    assert len(draws) > 0.99 * len(seeds)  # 24 bits each: a few meet by chance


@given(st.integers(0, 2**63), st.integers(0, 2**63), st.integers(0, 2**63))
def test_a_step_seed_is_one_that_torch_takes(seed, step, rank):
    torch.Generator().manual_seed(step_seed(seed, step, rank))


# --- loss ---


def test_the_loss_is_the_mean_surprise_in_nats():
    logits = torch.log(torch.tensor([[[0.5, 0.25, 0.25], [0.1, 0.2, 0.7]]]))
    targets = torch.tensor([[1, 2]])
    surprises = [-math.log(0.25), -math.log(0.7)]
    assert next_token_loss(logits, targets).item() == pytest.approx(sum(surprises) / 2)
    total = next_token_loss(logits, targets, reduction="sum")
    assert total.item() == pytest.approx(sum(surprises))
    assert next_token_loss(logits.bfloat16(), targets).dtype == torch.float32


def test_even_odds_over_all_bytes_are_eight_bits_per_byte():
    assert bits_per_byte(1000 * math.log(256), 1000) == pytest.approx(8)
    # The same text in tokens of two bytes each: twice the nats a token, the same bits a byte.
    assert bits_per_byte(500 * math.log(256**2), 1000) == pytest.approx(8)
    assert math.isnan(bits_per_byte(3.0, 0))
