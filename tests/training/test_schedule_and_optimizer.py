"""The laws of what training computes: rates, decay, seeds, losses."""

import copy
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
from headscope.training.optimizer import adamw, by_decay, muon
from headscope.training.schedule import warmup_cosine, warmup_linear

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


@given(st.integers(1, 300), st.integers(0, 40), st.floats(0, 1), st.floats(0, 1))
def test_the_linear_schedule_rises_stays_and_falls(max_steps, warmup_steps, cooldown, final):
    plan = {"warmup_steps": warmup_steps, "cooldown": cooldown, "final_fraction": final}
    rates = [warmup_linear(step, max_steps=max_steps, **plan) for step in range(max_steps + 3)]
    top = rates.index(max(rates))
    assert all(a <= b + 1e-12 for a, b in pairwise(rates[: top + 1]))
    assert all(a >= b - 1e-12 for a, b in pairwise(rates[top:]))
    assert 0 < rates[0] <= 1
    assert max(rates) <= 1
    for step, rate in enumerate(rates[:max_steps]):
        if warmup_steps <= step <= (1 - cooldown) * max_steps - 1:
            assert rate == 1
    if cooldown and max_steps > warmup_steps:
        assert rates[max_steps] == pytest.approx(final)


def test_the_linear_schedule_by_hand():
    plan = {"max_steps": 10, "warmup_steps": 1, "cooldown": 0.5, "final_fraction": 0.2}
    rates = [warmup_linear(step, **plan) for step in (0, 1, 5, 6, 10, 12)]
    assert rates == pytest.approx([0.5, 1, 1, 0.84, 0.2, 0.2])


@pytest.mark.parametrize("cooldown", [-0.1, 1.1])
def test_a_cooldown_that_is_no_share_is_refused(cooldown):
    with pytest.raises(ValueError, match="cooldown"):
        warmup_linear(0, max_steps=9, warmup_steps=0, cooldown=cooldown, final_fraction=0)


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


MUON = SETTINGS | {"matrix_lr": 0.02, "momentum": 0.9}


def trained(gpt: GPT, optimizer: torch.optim.Optimizer, steps: int) -> None:
    tokens = torch.randint(0, 7, (3, 5), generator=torch.Generator().manual_seed(1))
    for _ in range(steps):
        optimizer.zero_grad()
        next_token_loss(gpt(tokens), tokens).backward()
        optimizer.step()


def test_muon_has_the_matrices_of_the_blocks_and_adamw_all_else():
    gpt = model(tied_head=False)
    hidden, *rest = muon(gpt, **MUON).param_groups
    matrices = [p for p in gpt.blocks.parameters() if p.dim() == 2]
    assert [id(p) for p in hidden["params"]] == [id(p) for p in matrices]
    assert hidden["lr"] == 0.02
    others = [id(p) for group in rest for p in group["params"]]
    left = [id(p) for p in gpt.parameters() if id(p) not in {id(m) for m in matrices}]
    assert sorted(others) == sorted(left)
    assert {group["lr"] for group in rest} == {0.01}
    assert [group["weight_decay"] for group in (hidden, *rest)] == [0.1, 0.1, 0.0]


def test_together_is_each_alone():
    torch.manual_seed(0)
    one = model()
    other = copy.deepcopy(one)
    optimizer = muon(one, **MUON)
    trained(one, optimizer, 3)
    matrices = [p for p in other.blocks.parameters() if p.dim() == 2]
    rest = [p for p in other.parameters() if id(p) not in {id(m) for m in matrices}]
    first = torch.optim.Muon(matrices, lr=0.02, momentum=0.9, weight_decay=0.1)
    second = torch.optim.AdamW(by_decay(rest, 0.1), lr=0.01, betas=(0.8, 0.95), fused=True)
    tokens = torch.randint(0, 7, (3, 5), generator=torch.Generator().manual_seed(1))
    for _ in range(3):
        other.zero_grad()
        next_token_loss(other(tokens), tokens).backward()
        first.step()
        second.step()
    for name, weight in one.state_dict().items():
        assert torch.equal(weight, other.state_dict()[name]), name


def test_a_rate_set_on_a_group_holds_also_after_loading():
    torch.manual_seed(0)
    gpt = model()
    optimizer = muon(gpt, **MUON)
    trained(gpt, optimizer, 2)
    state, weights = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(gpt.state_dict())
    trained(gpt, optimizer, 2)

    again = model()
    again.load_state_dict(weights)
    resumed = muon(again, **MUON)
    resumed.load_state_dict(state)
    trained(again, resumed, 2)
    for name, weight in gpt.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name]), name

    for group in resumed.param_groups:
        group["lr"] = group["weight_decay"] = 0.0
    before = copy.deepcopy(again.state_dict())
    trained(again, resumed, 1)
    for name, weight in again.state_dict().items():
        assert torch.equal(weight, before[name]), name


def test_the_step_is_given_its_closure_once_and_returns_the_loss():
    gpt, calls = model(), []

    def closure():
        calls.append(torch.is_grad_enabled())
        loss = gpt(torch.zeros(1, 2, dtype=torch.long)).sum()
        loss.backward()
        return loss

    with torch.no_grad():
        assert isinstance(muon(gpt, **MUON).step(closure), torch.Tensor)
    assert calls == [True]


@pytest.mark.parametrize("wrong", [{"momentum": 1.0}, {"beta1": 1.0}, {"beta2": -0.1}])
def test_muon_refuses_what_no_run_can_have(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        muon(model(), **(MUON | wrong))


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
