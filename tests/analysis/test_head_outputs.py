"""What a head contributes: measured by removing it or by exchanging it between two texts, and
estimated from gradients. All equal what hooks, written here, do to the head's output."""

import copy
from contextlib import ExitStack
from dataclasses import replace
from itertools import product

import pytest
import torch
from checkpoint_files import content, save
from choices import every_part
from refusals import refused
from small_gpt import gpt, induction_circuit, variant

import headscope
from headscope.analysis.ablation import (
    ablate_heads,
    gradient_importance,
    mean_outputs,
    other_induction,
)
from headscope.analysis.patching import ContinuationLoss, LogitDifference, patch_heads
from headscope.analysis.repeats import RepeatProbe
from headscope.nn.loss import IGNORED, next_token_loss
from headscope.show.report.patch_texts import patch_texts

TEXTS = torch.randint(11, (7, 11), generator=torch.Generator().manual_seed(1))
INPUTS, TARGETS = TEXTS[:, :-1], TEXTS[:, 1:]

CLEAN = torch.tensor([3, 1, 4, 1, 5, 9, 2])
CORRUPTED = torch.tensor([3, 1, 4, 8, 5, 9, 2])
METRIC = LogitDifference(right=6, wrong=7)

zero_or_mean = pytest.mark.parametrize("replace_by", ["zero", "mean"])


COUNTED = torch.rand(TARGETS.shape, generator=torch.Generator().manual_seed(2)) < 0.3
SOME = TARGETS.where(COUNTED, IGNORED)


def outputs_changed(model, layer, change):
    """Inside the block, `out_proj` of the layer reads change(outputs); outputs (N, T, H, D)."""
    part = model.attentions[layer]
    return part.out_proj.register_forward_pre_hook(
        lambda module, read: change(read[0].unflatten(-1, (part.heads, -1))).flatten(-2)
    )


def outputs_of(model, layer, tokens):
    """The outputs (N, T, H, D) of the layer's heads."""
    read = []
    with outputs_changed(model, layer, lambda outputs: read.append(outputs) or outputs):
        model(tokens)
    return read[0]


def replaced(model, layer, head, replace_by):
    """Inside the block, the head's output is zero, or its mean over all tokens of INPUTS."""
    before = outputs_of(model, layer, INPUTS)
    constant = before.mean(dim=(0, 1))[head] * (replace_by == "mean")
    is_head = (torch.arange(before.size(2)) == head)[:, None]
    return outputs_changed(model, layer, lambda outputs: outputs.where(~is_head, constant))


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    """So that the texts are in several batches."""
    monkeypatch.setattr("headscope.analysis.head_outputs.MAX_BATCH", 3)


def losses(model, targets=TARGETS):
    """Of every token, (N, T); 0 where it does not count."""
    return next_token_loss(model(INPUTS), targets, reduction="none").view_as(targets)


@torch.no_grad()
@every_part
@zero_or_mean
def test_what_changes_without_a_head_is_what_replacing_its_output_changes(pair, replace_by):
    """The loss, and the induction of the others."""
    model = gpt(**variant(pair), document_mask=True, end_of_text=10)
    whole = losses(model).mean(dim=-1)
    means = mean_outputs(model, INPUTS) if replace_by == "mean" else None
    found = ablate_heads(model, INPUTS, TARGETS, means=means)
    found["induction"] = other_induction(model, means=means, excluded=[10], texts=6)
    torch.testing.assert_close(found.pop("loss"), whole.mean(), rtol=1e-5, atol=1e-6)
    for layer, head in ((0, 0), (1, model.attentions[1].heads - 1)):
        with replaced(model, layer, head, replace_by):
            change = losses(model).mean(dim=-1) - whole
            induction = RepeatProbe(model, excluded=[10], texts=6).metrics(model)["induction"]
        induction[layer, head] = -1
        expected = {
            "loss_change": change.mean(),
            "loss_change_error": change.std() / len(INPUTS) ** 0.5,
            "induction": induction.max(),
        }
        of_head = {name: values[layer, head] for name, values in found.items()}
        torch.testing.assert_close(of_head, expected, rtol=1e-3, atol=5e-6)
    assert found["loss_change"].abs().min() > 1e-5


@torch.no_grad()
@zero_or_mean
def test_a_loss_that_counts_some_tokens_is_their_mean_over_all_texts(replace_by):
    """Texts with more of them weigh more. The standard error is that of drawing other texts."""
    model, count = gpt(), COUNTED.sum()
    whole = losses(model, SOME)
    means = mean_outputs(model, INPUTS) if replace_by == "mean" else None
    found = ablate_heads(model, INPUTS, SOME, means=means)
    estimated = gradient_importance(model, INPUTS, SOME, means=means)
    for loss in (found["loss"], estimated["loss"]):
        torch.testing.assert_close(loss, whole.sum() / count)
    texts = torch.randint(7, (4000, 7), generator=torch.Generator().manual_seed(3))  # bootstrap
    for layer, head in product(range(2), range(4)):
        with replaced(model, layer, head, replace_by):
            change = (losses(model, SOME) - whole).sum(dim=1)
        value, error = (found[name][layer, head] for name in ("loss_change", "loss_change_error"))
        torch.testing.assert_close(value, change.sum() / count, rtol=1e-4, atol=1e-5)
        drawn = change[texts].sum(dim=1) / COUNTED.sum(dim=1)[texts].sum(dim=1)
        torch.testing.assert_close(error, drawn.std(), rtol=0.3, atol=0)


@every_part
@zero_or_mean
def test_an_estimate_is_the_gradient_of_a_factor_of_each_token_and_head(pair, replace_by):
    """The factor multiplies what the head writes, or its difference from the mean."""
    model = gpt(**variant(pair))
    factors = torch.ones(2, *INPUTS.shape, model.attentions[0].heads, 1, requires_grad=True)
    constant = [outputs_of(model, layer, INPUTS).detach().mean(dim=(0, 1)) for layer in (0, 1)]
    if replace_by == "zero":
        constant = [torch.zeros(()), torch.zeros(())]
    with ExitStack() as stack:
        for layer, fixed, factor in zip((0, 1), constant, factors, strict=True):

            def change(x, fixed=fixed, factor=factor):
                return fixed + (x - fixed) * factor

            stack.enter_context(outputs_changed(model, layer, change))
        loss = losses(model).mean(dim=-1)
    [gradients] = torch.autograd.grad(loss.sum(), factors)  # (L, N, T, H, 1)
    means = mean_outputs(model, INPUTS) if replace_by == "mean" else None
    found = gradient_importance(model, INPUTS, TARGETS, means=means)
    expected = {"loss": loss.mean()}
    expected["loss_change_estimate"] = -gradients.sum(dim=(2, 4)).mean(dim=1)
    if replace_by == "zero":
        expected["gradient_importance"] = gradients.abs().sum(dim=(2, 4)).mean(dim=1)
    for name, values in expected.items():
        torch.testing.assert_close(found[name], values, rtol=1e-3, atol=5e-6)


@torch.no_grad()
@every_part
@pytest.mark.parametrize("position", [None, 3])
def test_each_head_is_exchanged_between_the_texts(pair, position):
    model, metric = gpt(**variant(pair)), ContinuationLoss((5, 9, 2))
    found = patch_heads(model, CLEAN, CORRUPTED, metric, position=position)
    places = range(7) if position is None else [position]
    cases = [(found.noised, CLEAN, CORRUPTED), (found.denoised, CORRUPTED, CLEAN)]
    for layer, head in ((0, 0), (1, model.attentions[1].heads - 1)):
        for result, text, other in cases:
            [new] = outputs_of(model, layer, other[None])

            def exchange(outputs, new=new, head=head):
                outputs = outputs.clone()
                outputs[:, places, head] = new[places, head]
                return outputs

            with outputs_changed(model, layer, exchange):
                expected = next_token_loss(model(text[None])[:, 3:6], CLEAN[None, 4:])
            torch.testing.assert_close(result[layer, head], expected, rtol=1e-4, atol=1e-5)
    assert (found.denoised - found.corrupted).abs().max() > 1e-4


def test_in_an_induction_circuit_the_two_heads_of_the_circuit_are_needed_and_each_restores_it():
    """clean: A B ... A, which makes the model predict B. corrupted: D B ... A."""
    model = induction_circuit(heads=2)
    model.norm = torch.nn.Identity()
    clean, corrupted = torch.tensor([1, 2, 5, 6, 7, 1]), torch.tensor([4, 2, 5, 6, 7, 1])
    found = patch_heads(model, clean, corrupted, LogitDifference(right=2, wrong=5))
    ones = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    torch.testing.assert_close(found.denoising, ones, rtol=0, atol=1e-3)
    torch.testing.assert_close(found.noising, 1 - ones, rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    "measure",
    [
        lambda model: ablate_heads(model, INPUTS, TARGETS, means=mean_outputs(model, INPUTS)),
        lambda model: gradient_importance(
            model, INPUTS, TARGETS, means=mean_outputs(model, INPUTS)
        ),
        lambda model: vars(patch_heads(model, *INPUTS[:2], METRIC)),
    ],
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


# --- patching with texts ---

GOOD = {"clean": "abc ab", "corrupted": "abd ab", "answers": ["c", "d"]}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """A model of 8 bytes of context."""
    file = tmp_path_factory.mktemp("patch") / "some.safetensors"
    save(content()[0], file)
    return headscope.load(file)


def test_answers_are_a_logit_difference_and_a_continuation_is_a_loss(loaded):
    found = patch_texts(loaded, clean="abc abc", corrupted="abd abc", answers=["x", " "])
    assert (found.clean, found.corrupted) == (list("abc·abc"), list("abd·abc"))
    logits = [loaded.logits(text)[-1] for text in ("abc abc", "abd abc")]
    differences = [float(of_text[ord("x")] - of_text[ord(" ")]) for of_text in logits]
    assert [found.result.clean, found.result.corrupted] == pytest.approx(differences, abs=1e-5)
    found = patch_texts(loaded, clean="abca", corrupted="abda", continuation="bc")
    assert (found.clean, found.corrupted) == (list("abcabc"), list("abdabc"))
    losses = [float(loaded.loss(text)[-2:].mean()) for text in ("abcabc", "abdabc")]
    assert [found.result.clean, found.result.corrupted] == pytest.approx(losses, abs=1e-5)


def test_two_texts_with_one_prediction_have_nothing_to_patch(loaded):
    alike = replace(loaded, model=copy.deepcopy(loaded.model))
    torch.nn.init.zeros_(alike.model.head.weight)
    with refused("no difference that a head could carry"):
        patch_texts(alike, **GOOD)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"corrupted": "多 abc"}, ["have 6 and 7 tokens", "['多 1/3', "]),
        ({"corrupted": "abc ab"}, ["same text"]),
        ({"clean": None}, ["patch.clean="]),
        ({"answers": None}, ["patch.answers", "patch.continuation"]),
        ({"answers": ["c"]}, ["patch.answers=['c']", "two different"]),
        ({"answers": ["c", "c"]}, ["two different"]),
        ({"answers": ["c", "de"]}, ["'de' has 2 tokens (d, e)"]),
        ({"answers": None, "continuation": ""}, ["patch.continuation"]),
        ({"answers": None, "continuation": "cde"}, ["9 tokens", "block_size=8"]),
        ({"position": 6}, ["position=6", "0 to 5"]),
    ],
    ids=str,
)
def test_a_mistake_is_told_in_one_line(loaded, changed, words):
    with refused(*words):
        patch_texts(loaded, **(GOOD | changed))
