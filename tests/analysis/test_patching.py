"""Activation patching equals a forward pass in which a hook, written here, replaces a head."""

import pytest
import torch
from choices import every_part
from induction_circuit import VOCAB, induction_circuit
from small_gpt import gpt, variant
from torch import Tensor

from headscope.analysis.patching import ContinuationLoss, LogitDifference, patch_heads
from headscope.errors import UserError
from headscope.nn import GPT

CLEAN = torch.tensor([3, 1, 4, 1, 5, 9, 2])
CORRUPTED = torch.tensor([3, 1, 4, 8, 5, 9, 2])
METRIC = LogitDifference(right=6, wrong=7)


def outputs_of(model: GPT, text: Tensor, layer: int) -> Tensor:
    """What `out_proj` of a layer reads, (1, T, H D)."""
    read = []
    projection = model.attentions[layer].out_proj
    handle = projection.register_forward_hook(lambda module, inputs, out: read.append(inputs[0]))
    model(text[None])
    handle.remove()
    return read[0]


def by_hand(model: GPT, text: Tensor, other: Tensor, layer: int, head: int, positions) -> Tensor:
    """The logits (1, T, V) of `text` when the head has its output of `other` at `positions`."""
    part = model.attentions[layer]
    columns = slice(head * part.head_dim, (head + 1) * part.head_dim)
    mixed = outputs_of(model, text, layer).clone()
    mixed[:, positions, columns] = outputs_of(model, other, layer)[:, positions, columns]
    handle = part.out_proj.register_forward_hook(
        lambda module, inputs, out: torch.nn.functional.linear(mixed, module.weight, module.bias)
    )
    logits = model(text[None])
    handle.remove()
    return logits


@torch.no_grad()
@every_part
def test_each_head_is_replaced_as_by_hand(pair):
    for position in [None, 3, 6]:
        model = gpt(**variant(pair))
        found = patch_heads(model, CLEAN, CORRUPTED, METRIC, position=position, max_batch=3)
        places = range(7) if position is None else [position]
        assert found.clean == pytest.approx(float(METRIC(model(CLEAN[None]))), rel=1e-4, abs=1e-5)
        for layer, part in enumerate(model.attentions):
            for head in range(part.heads):
                for result, text, other in (
                    (found.noised, CLEAN, CORRUPTED),
                    (found.denoised, CORRUPTED, CLEAN),
                ):
                    logits = by_hand(model, text, other, layer, head, places)
                    expected = float(logits[0, -1, 6] - logits[0, -1, 7])
                    assert float(result[layer, head]) == pytest.approx(expected, rel=1e-4, abs=1e-5)
        assert (found.denoised - found.corrupted).abs().max() > 1e-4


@torch.no_grad()
def test_the_loss_of_the_continuation_is_that_of_its_tokens():
    model = gpt()
    tokens = CLEAN[-3:]
    shares = model(CLEAN[None])[0].log_softmax(dim=-1)
    expected = -sum(float(shares[3 + n, token]) for n, token in enumerate(tokens)) / 3
    found = patch_heads(model, CLEAN, CORRUPTED, ContinuationLoss(tuple(tokens.tolist())))
    assert found.clean == pytest.approx(expected, rel=1e-5)
    assert found.corrupted != pytest.approx(expected, rel=1e-3)


def test_to_exchange_the_texts_exchanges_the_directions():
    there = patch_heads(gpt(), CLEAN, CORRUPTED, METRIC)
    back = patch_heads(gpt(), CORRUPTED, CLEAN, METRIC)
    torch.testing.assert_close(there.denoising, 1 - back.noising)
    torch.testing.assert_close(there.noising, 1 - back.denoising)


def test_the_same_text_changes_nothing_and_has_no_score():
    found = patch_heads(gpt(), CLEAN, CLEAN, METRIC)
    for changed in (found.denoised, found.noised):
        torch.testing.assert_close(changed, torch.full_like(changed, found.clean))
    assert found.clean == found.corrupted
    assert found.denoising.isnan().all()
    assert found.noising.isnan().all()


def test_a_head_that_writes_nothing_has_no_effect():
    model = gpt()
    with torch.no_grad():
        model.attentions[1].out_proj.weight[:, 8:12] = 0  # the columns of head 2
    found = patch_heads(model, CLEAN, CORRUPTED, METRIC)
    idle = torch.zeros(2, 4, dtype=torch.bool)
    idle[1, 2] = True
    assert torch.equal(found.denoising.abs() < 1e-5, idle)
    assert torch.equal((found.noising - 1).abs() < 1e-5, idle)


def test_positions_before_the_difference_have_no_effect_and_in_the_last_layer_only_the_last_has():
    model = gpt()
    for position in range(3):  # causal: both texts have the same outputs here
        found = patch_heads(model, CLEAN, CORRUPTED, METRIC, position=position)
        torch.testing.assert_close(found.denoising, torch.zeros(2, 4), rtol=0, atol=1e-5)
    everywhere = patch_heads(model, CLEAN, CORRUPTED, METRIC)
    for position in range(7):
        found = patch_heads(model, CLEAN, CORRUPTED, METRIC, position=position)
        expected = everywhere.denoising[1] if position == 6 else torch.zeros(4)
        torch.testing.assert_close(found.denoising[1], expected, rtol=1e-4, atol=1e-5)


def test_in_an_induction_circuit_the_two_heads_of_the_circuit_are_needed_and_each_restores_it():
    """clean: A B ... A, which makes the model predict B. corrupted: D B ... A."""
    model = induction_circuit(heads=2)
    model.norm = torch.nn.Identity()
    with torch.no_grad():  # the induction head also copies the token that it looks at
        attention = model.attentions[1]
        attention.qkv.weight.chunk(3)[2][:VOCAB, :VOCAB] = torch.eye(VOCAB)
        attention.out_proj.weight[:VOCAB, :VOCAB] = torch.eye(VOCAB)
    clean, corrupted = torch.tensor([1, 2, 5, 6, 7, 1]), torch.tensor([4, 2, 5, 6, 7, 1])
    found = patch_heads(model, clean, corrupted, LogitDifference(right=2, wrong=5))
    ones = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    torch.testing.assert_close(found.denoising, ones, rtol=0, atol=1e-3)
    torch.testing.assert_close(found.noising, 1 - ones, rtol=0, atol=1e-3)


def test_the_model_is_left_as_it_was():
    model = gpt(dropout=0.5).train()
    first = patch_heads(model, CLEAN, CORRUPTED, METRIC)
    assert all(module.training for module in model.modules())
    assert not any(part.out_proj._forward_pre_hooks for part in model.attentions)
    again = patch_heads(model, CLEAN, CORRUPTED, METRIC)
    torch.testing.assert_close(vars(first), vars(again), rtol=0, atol=0)


def test_texts_and_metrics_that_do_not_fit_are_refused():
    for corrupted, position, words in (
        (CORRUPTED[:-1], None, r"\(7,\).*\(6,\).*same number of tokens"),
        (CORRUPTED[None], None, r"\(1, 7\)"),
        (CORRUPTED, 7, "position=7.*0 to 6"),
        (CORRUPTED, -1, "position=-1.*0 to 6"),
    ):
        with pytest.raises(UserError, match=words):
            patch_heads(gpt(), CLEAN, corrupted, METRIC, position=position)
    for metric, words in (
        (ContinuationLoss(()), "has 0 tokens"),
        (ContinuationLoss(tuple(range(7))), "has 7 tokens, and the texts have 7"),
        (LogitDifference(1, -1), "the token -1 must be from 0 to"),
    ):
        with pytest.raises(UserError, match=words):
            patch_heads(gpt(), CLEAN, CORRUPTED, metric)
    with pytest.raises(UserError, match="at least one"):
        patch_heads(gpt(), CLEAN[:0], CORRUPTED[:0], METRIC)
