"""What a head contributes: measured by removing it, and estimated from gradients. Both equal what
hooks, written here, do to the head's output."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest
import torch
from choices import ATTENTIONS, every_part, parts
from induction_circuit import induction_circuit
from small_gpt import gpt, variant
from torch import Tensor

from headscope.analysis.ablation import ablate_heads, mean_outputs, other_induction
from headscope.analysis.gradients import gradient_importance
from headscope.analysis.patching import LogitDifference, patch_heads
from headscope.analysis.repeats import repeat_figures
from headscope.nn import GPT
from headscope.nn.loss import next_token_loss

TEXTS = torch.randint(11, (7, 11), generator=torch.Generator().manual_seed(1))
INPUTS, TARGETS = TEXTS[:, :-1], TEXTS[:, 1:]

every_attention = pytest.mark.parametrize("attention", ATTENTIONS)
zero_or_mean = pytest.mark.parametrize("replace_by", ["zero", "mean"])


@contextmanager
def outputs_changed(model: GPT, layer: int, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Inside the block, `out_proj` of the layer reads change(outputs); outputs (N, T, H, D)."""
    part = model.attentions[layer]
    handle = part.out_proj.register_forward_pre_hook(
        lambda module, read: change(read[0].unflatten(-1, (part.heads, -1))).flatten(-2)
    )
    yield
    handle.remove()


def replaced(model: GPT, layer: int, head: int, replace_by: str):
    """Inside the block, the head's output is zero, or its mean over all tokens of INPUTS."""
    read: list[Tensor] = []
    with outputs_changed(model, layer, lambda outputs: read.append(outputs) or outputs):
        model(INPUTS)
    constant = read[0].mean(dim=(0, 1))[head] * (replace_by == "mean")
    is_head = (torch.arange(read[0].size(2)) == head)[:, None]
    return outputs_changed(model, layer, lambda outputs: outputs.where(~is_head, constant))


def losses(model: GPT) -> Tensor:
    """Of every text, (N,)."""
    each = next_token_loss(model(INPUTS), TARGETS, reduction="none")
    return each.view_as(TARGETS).mean(dim=-1)


@torch.no_grad()
@every_attention
@zero_or_mean
def test_the_change_of_the_loss_is_that_of_replacing_the_output(attention, replace_by):
    model = gpt(**parts(attention, "learned"))
    found = ablate_heads(model, INPUTS, TARGETS, replace_by=replace_by)
    whole = losses(model)
    torch.testing.assert_close(found["loss"], whole.mean(), rtol=1e-5, atol=1e-6)
    heads = model.attentions[0].heads
    assert found["nats_per_token"].shape == found["standard_error"].shape == (2, heads)
    for layer in range(2):
        for head in range(heads):
            with replaced(model, layer, head, replace_by):
                change = losses(model) - whole
            for name, expected in {
                "nats_per_token": change.mean(),
                "standard_error": change.std() / len(INPUTS) ** 0.5,
            }.items():
                torch.testing.assert_close(found[name][layer, head], expected, rtol=1e-3, atol=5e-6)
    assert found["nats_per_token"].abs().min() > 1e-5


@torch.no_grad()
@every_attention
@zero_or_mean
def test_the_others_are_measured_in_the_model_without_the_head(attention, replace_by):
    model = gpt(**parts(attention, "learned"))
    means = mean_outputs(model, INPUTS, max_batch=3) if replace_by == "mean" else None
    found = other_induction(model, means=means, excluded=[3], texts=6)
    for layer, part in enumerate(model.attentions):
        for head in range(part.heads):
            with replaced(model, layer, head, replace_by):
                induction = repeat_figures(model, excluded=[3], texts=6)["induction"]
            induction[layer, head] = -1
            torch.testing.assert_close(found[layer, head], induction.max(), rtol=1e-4, atol=1e-6)


def test_how_much_goes_through_at_once_changes_nothing_but_the_progress():
    model = gpt()
    whole = ablate_heads(model, INPUTS, TARGETS)
    seen: list[Tensor] = []

    def track(batches):
        seen.extend(batches)
        return seen[-len(batches) :]

    for max_batch in (1, 3, 8):
        some = ablate_heads(model, INPUTS, TARGETS, max_batch=max_batch, track=track)
        torch.testing.assert_close(some, whole, rtol=1e-4, atol=1e-6)
    assert torch.equal(torch.cat(seen), torch.arange(7).repeat(3))


def test_without_the_previous_token_head_no_head_does_induction():
    """Each layer of the circuit has one head that matters, head 0."""
    model = induction_circuit(heads=2)
    [[whole]] = repeat_figures(model, texts=24)["induction"][1:, :1].tolist()
    assert whole > 0.9
    assert other_induction(model, texts=24).tolist() == [
        [pytest.approx(0, abs=0.05), pytest.approx(whole)],  # the previous-token head, an idle one
        [pytest.approx(0, abs=0.05), pytest.approx(whole)],  # the induction head, an idle one
    ]


def test_a_head_without_others_has_no_induction_of_others():
    model = gpt(**parts("single_head", "learned"), layers=1)
    assert other_induction(model, texts=4).isnan().all()


@every_part
def test_an_estimate_is_the_gradient_of_a_factor_of_each_token_and_head(pair):
    model = gpt(**variant(pair))
    factors = torch.ones(2, *INPUTS.shape, model.attentions[0].heads, 1, requires_grad=True)
    with (
        outputs_changed(model, 0, lambda outputs: outputs * factors[0]),
        outputs_changed(model, 1, lambda outputs: outputs * factors[1]),
    ):
        loss = losses(model)
    [gradients] = torch.autograd.grad(loss.sum(), factors)  # (L, N, T, H, 1)
    found = gradient_importance(model, INPUTS, TARGETS, max_batch=2)
    for name, expected in {
        "loss": loss.mean(),
        "importance": gradients.squeeze(-1).abs().sum(dim=2).mean(dim=1),
        "nats_per_token": -gradients.squeeze(-1).sum(dim=2).mean(dim=1),
    }.items():
        torch.testing.assert_close(found[name], expected, rtol=1e-3, atol=2e-6)
    assert (found["importance"] > found["nats_per_token"].abs()).any()  # signs cancel


@torch.no_grad()
@zero_or_mean
def test_of_heads_that_do_little_the_estimate_is_the_change_that_ablation_measures(replace_by):
    """Where a head writes 1/1000, the loss is nearly linear in it, so the estimate is exact."""
    model = gpt()
    for part in model.attentions:
        part.out_proj.weight *= 1e-3
    model = model.double()
    estimate, measured = (
        measure(model, INPUTS, TARGETS, replace_by=replace_by)
        for measure in (gradient_importance, ablate_heads)
    )
    expected = measured["nats_per_token"]
    assert expected.abs().min() > 2e-6
    close = partial(torch.testing.assert_close, check_dtype=False)
    close(estimate["nats_per_token"], expected, rtol=0.05, atol=1e-6)
    close(estimate["loss"], measured["loss"])


@pytest.mark.parametrize(
    "measure",
    [
        lambda model: ablate_heads(model, INPUTS, TARGETS, replace_by="mean"),
        lambda model: gradient_importance(model, INPUTS, TARGETS, replace_by="mean"),
        lambda model: vars(patch_heads(model, *INPUTS[:2], LogitDifference(right=6, wrong=7))),
    ],
    ids=["ablation", "gradients", "patching"],
)
def test_the_model_is_left_as_it_was_and_may_be_frozen(measure):
    model = gpt(dropout=0.5).train()
    before = copy.deepcopy(model.state_dict())
    first = measure(model)
    assert all(module.training for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(part.out_proj._forward_pre_hooks for part in model.attentions)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    frozen = measure(model.requires_grad_(False))
    torch.testing.assert_close(frozen, first, rtol=0, atol=0)
