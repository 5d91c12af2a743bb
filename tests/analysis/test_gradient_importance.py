"""The estimates from gradients equal autograd through an explicit mask, and finite differences."""

import pytest
import torch
from choices import every_part
from small_gpt import gpt, variant
from torch import Tensor

from headscope.analysis.ablation import ablate_heads, mean_outputs
from headscope.analysis.gradients import gradient_importance
from headscope.nn import GPT
from headscope.nn.loss import next_token_loss

TEXTS = torch.randint(11, (5, 11), generator=torch.Generator().manual_seed(1))
INPUTS, TARGETS = TEXTS[:, :-1], TEXTS[:, 1:]


def masked_losses(model: GPT, masks: list[Tensor]) -> Tensor:
    """The mean loss of each text (N,) when a factor (N, T, H) multiplies each head's output."""
    handles = []
    for part, mask in zip(model.attentions, masks, strict=True):
        wide = mask.repeat_interleave(part.head_dim, dim=-1)
        handles.append(
            part.out_proj.register_forward_pre_hook(lambda module, read, wide=wide: read[0] * wide)
        )
    losses = next_token_loss(model(INPUTS), TARGETS, reduction="none").view_as(TARGETS)
    for handle in handles:
        handle.remove()
    return losses.mean(dim=-1)


@every_part
def test_it_is_the_gradient_of_a_mask_of_each_token_and_head(pair):
    model = gpt(**variant(pair))
    heads = model.attentions[0].heads
    masks = [torch.ones(5, 10, heads, requires_grad=True) for _ in model.attentions]
    losses = masked_losses(model, masks)
    gradients = torch.stack(torch.autograd.grad(losses.sum(), masks))  # (L, N, T, H)
    found = gradient_importance(model, INPUTS, TARGETS, max_batch=2)
    torch.testing.assert_close(found["loss"], losses.mean(), rtol=1e-4, atol=1e-6)
    expected = gradients.abs().sum(dim=2).mean(dim=1)
    torch.testing.assert_close(found["importance"], expected, rtol=1e-3, atol=1e-6)
    expected = -gradients.sum(dim=2).mean(dim=1)
    torch.testing.assert_close(found["nats_per_token"], expected, rtol=1e-3, atol=1e-6)
    assert (found["importance"] > found["nats_per_token"].abs()).any()  # signs cancel


@torch.no_grad()
def test_it_is_the_slope_of_the_loss_as_the_head_fades():
    model = gpt()
    found = gradient_importance(model, INPUTS, TARGETS)["nats_per_token"]
    for layer in range(2):
        for head in range(4):
            losses = []
            for step in (1e-2, -1e-2):
                masks = [torch.ones(5, 10, 4) for _ in range(2)]
                masks[layer][..., head] -= step
                losses.append(masked_losses(model, masks).mean())
            slope = float(losses[0] - losses[1]) / 2e-2
            assert float(found[layer, head]) == pytest.approx(slope, rel=5e-3, abs=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("replace_by", ["zero", "mean"])
def test_of_heads_that_do_little_it_is_the_change_that_ablation_measures(replace_by):
    """Where a head writes 1/1000, the loss is nearly linear in it, so the estimate is exact."""
    model = gpt()
    for part in model.attentions:
        part.out_proj.weight *= 1e-3
    model = model.double()
    estimate = gradient_importance(model, INPUTS, TARGETS, replace_by=replace_by)
    measured = ablate_heads(model, INPUTS, TARGETS, replace_by=replace_by)
    expected = measured["nats_per_token"]
    torch.testing.assert_close(
        estimate["nats_per_token"].double(), expected.double(), rtol=0.05, atol=1e-6
    )
    assert expected.abs().min() > 2e-6
    torch.testing.assert_close(estimate["loss"], measured["loss"], check_dtype=False)


@torch.no_grad()
def test_with_the_mean_a_head_of_constant_output_changes_nothing():
    model = gpt()
    model.attentions[0].qkv.weight[32:36] = 0  # the values of head 0
    found = gradient_importance(model, INPUTS, TARGETS, replace_by="mean")
    assert float(found["nats_per_token"][0, 0]) == pytest.approx(0, abs=1e-7)
    assert mean_outputs(model, INPUTS, 2)[0][0].abs().max() == 0


def test_the_model_is_left_as_it_was_and_may_be_frozen():
    model = gpt(dropout=0.5).train()
    first = gradient_importance(model, INPUTS, TARGETS)
    assert all(module.training for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(part.out_proj._forward_pre_hooks for part in model.attentions)
    frozen = gradient_importance(model.requires_grad_(False), INPUTS, TARGETS, max_batch=2)
    torch.testing.assert_close(first, frozen, rtol=1e-4, atol=1e-6)
