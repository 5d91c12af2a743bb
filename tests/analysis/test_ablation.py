"""What a head is worth: as reckoned by removing it from the weights of the model."""

import copy

import pytest
import torch
from choices import ATTENTIONS, parts
from induction_circuit import induction_circuit
from small_gpt import gpt
from torch import Tensor

from headscope.analysis.ablation import ablate_heads, mean_outputs, other_induction
from headscope.analysis.repeats import repeat_figures
from headscope.nn import GPT, MultiHeadAttention
from headscope.nn.loss import next_token_loss

TEXTS = torch.randint(11, (7, 11), generator=torch.Generator().manual_seed(1))
INPUTS, TARGETS = TEXTS[:, :-1], TEXTS[:, 1:]

every_attention = pytest.mark.parametrize("attention", ATTENTIONS)


def losses(model: GPT) -> Tensor:
    """Of every text, (N,)."""
    each = next_token_loss(model(INPUTS), TARGETS, reduction="none")
    return each.view_as(TARGETS).mean(dim=-1)


def without(model: GPT, layer: int, head: int) -> GPT:
    """A model whose `out_proj` does not read the head."""
    changed = copy.deepcopy(model)
    attention = changed.attentions[layer]
    with torch.no_grad():
        width = attention.head_dim
        attention.out_proj.weight[:, head * width : (head + 1) * width] = 0
    return changed


def heard(model: GPT, attention: MultiHeadAttention) -> Tensor:
    """What `out_proj` reads, (N, T, H D)."""
    inputs = []
    handle = attention.out_proj.register_forward_pre_hook(lambda module, read: inputs.extend(read))
    model(INPUTS)
    handle.remove()
    return inputs[0]


@torch.no_grad()
@every_attention
def test_zero_is_the_model_whose_projection_does_not_read_the_head(attention):
    model = gpt(**parts(attention, "learned"))
    found = ablate_heads(model, INPUTS, TARGETS)
    whole = next_token_loss(model(INPUTS), TARGETS)
    torch.testing.assert_close(found["loss"], whole, rtol=1e-5, atol=1e-6)
    heads = model.attentions[0].heads
    assert found["nats_per_token"].shape == found["standard_error"].shape == (2, heads)
    for layer in range(2):
        for head in range(heads):
            change = losses(without(model, layer, head)) - losses(model)
            expected = {
                "nats_per_token": change.mean(),
                "standard_error": change.std() / len(INPUTS) ** 0.5,
            }
            for name, value in expected.items():
                got = found[name][layer, head]
                torch.testing.assert_close(got, value, rtol=1e-4, atol=1e-6)
    assert found["nats_per_token"].abs().min() > 1e-5


@torch.no_grad()
@every_attention
def test_mean_adds_what_the_head_says_on_average(attention):
    model = gpt(**parts(attention, "learned"))
    found = ablate_heads(model, INPUTS, TARGETS, replace_by="mean")["nats_per_token"]
    means = mean_outputs(model, INPUTS, max_batch=3)
    for layer, part in enumerate(model.attentions):
        torch.testing.assert_close(means[layer].flatten(), heard(model, part).mean(dim=(0, 1)))
        for head in range(part.heads):
            changed = without(model, layer, head)
            constant = torch.zeros(part.heads, part.head_dim)
            constant[head] = means[layer][head]
            always = part.out_proj(constant.flatten())  # has no bias here
            projection = changed.attentions[layer].out_proj
            projection.register_forward_hook(lambda module, read, out, more=always: out + more)
            change = (losses(changed) - losses(model)).mean()
            torch.testing.assert_close(found[layer, head], change, rtol=1e-3, atol=1e-5)


def test_how_much_goes_through_at_once_changes_nothing():
    model = gpt()
    whole = ablate_heads(model, INPUTS, TARGETS)
    for max_batch in (1, 3, 8):
        some = ablate_heads(model, INPUTS, TARGETS, max_batch=max_batch)
        torch.testing.assert_close(some, whole, rtol=1e-4, atol=1e-6)


def test_the_model_is_left_as_it_was():
    model = gpt(dropout=0.5).train()
    before = copy.deepcopy(model.state_dict())
    first = ablate_heads(model, INPUTS, TARGETS, replace_by="mean")
    assert all(module.training for module in model.modules())
    assert not any(part.out_proj._forward_pre_hooks for part in model.attentions)
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    again = ablate_heads(model, INPUTS, TARGETS, replace_by="mean")
    torch.testing.assert_close(first, again, rtol=0, atol=0)


def test_progress_is_shown_batch_by_batch():
    seen = []
    ablate_heads(
        gpt(), INPUTS, TARGETS, max_batch=8, track=lambda parts: seen.extend(parts) or seen
    )
    assert torch.equal(torch.cat(seen), torch.arange(7))


def test_without_the_previous_token_head_no_head_does_induction():
    """Each layer of the circuit has one head that matters, head 0."""
    model = induction_circuit(heads=2)
    [[whole]] = repeat_figures(model, texts=24)["induction"][1:, :1].tolist()
    assert whole > 0.9
    assert other_induction(model, texts=24).tolist() == [
        [pytest.approx(0, abs=0.05), pytest.approx(whole)],  # the previous-token head, an idle one
        [pytest.approx(0, abs=0.05), pytest.approx(whole)],  # the induction head, an idle one
    ]


@torch.no_grad()
@every_attention
@pytest.mark.parametrize("by_mean", [False, True])
def test_the_others_are_measured_in_the_model_without_the_head(attention, by_mean):
    model = gpt(**parts(attention, "learned"))
    means = mean_outputs(model, INPUTS, max_batch=3) if by_mean else None
    found = other_induction(model, means=means, excluded=[3], texts=6)
    for layer, part in enumerate(model.attentions):
        for head in range(part.heads):
            changed = without(model, layer, head)
            if means is not None:
                always = part.out_proj.weight.unflatten(1, (part.heads, -1))[:, head]
                changed.attentions[layer].out_proj.register_forward_hook(
                    lambda module, read, out, more=always @ means[layer][head]: out + more
                )
            induction = repeat_figures(changed, excluded=[3], texts=6)["induction"]
            induction[layer, head] = -1
            torch.testing.assert_close(found[layer, head], induction.max(), rtol=1e-4, atol=1e-6)


def test_a_head_without_others_has_no_induction_of_others():
    model = gpt(**parts("single_head", "learned"), layers=1)
    assert other_induction(model, texts=4).isnan().all()
