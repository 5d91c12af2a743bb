"""Losses, and that chunks and compilation change neither them nor their gradients."""

import math
from contextlib import nullcontext
from functools import partial
from unittest.mock import Mock

import pytest
import torch
from choices import EACH, every_part
from small_gpt import gpt, some_tokens, training_step, variant
from torch import nn

from headscope.errors import ran_out_of_memory
from headscope.nn import ReluSquared
from headscope.nn.loss import bits_per_byte, next_token_loss
from headscope.training.objective import LOGIT_BYTES, Objective, compile_in_place

TOKENS = some_tokens()
BATCH = (TOKENS[:, :-1], TOKENS[:, 1:])


def test_the_loss_is_the_mean_cross_entropy_in_nats():
    logits = torch.log(torch.tensor([[[0.5, 0.25, 0.25], [0.1, 0.2, 0.7]]]))
    targets = torch.tensor([[1, 2]])
    total = -math.log(0.25) - math.log(0.7)
    assert next_token_loss(logits, targets).item() == pytest.approx(total / 2)
    assert next_token_loss(logits, targets, reduction="sum").item() == pytest.approx(total)
    assert next_token_loss(logits.bfloat16(), targets).dtype == torch.float32
    # With two bytes per token, the loss per token doubles and bits per byte stay the same.
    for tokens, bytes_per_token in ((1000, 1), (500, 2)):
        nats = tokens * math.log(256**bytes_per_token)
        assert bits_per_byte(nats, 1000) == pytest.approx(8)
    assert math.isnan(bits_per_byte(3.0, 0))


@every_part
def test_a_chunked_loss_and_its_gradients_equal_the_plain_ones(pair):
    """Covers tied and untied output heads."""
    model = gpt(**variant(pair), dropout=0.2)
    model.logit_cap = 3.0 if EACH.index(pair) % 2 else None
    plain = training_step(model, TOKENS)
    for rows, checkpointing in ((1, False), (5, True), (17, False)):
        chunked = training_step(model, TOKENS, chunk_tokens=rows, checkpointing=checkpointing)
        torch.testing.assert_close(chunked, plain, rtol=1e-5, atol=1e-6)


def computed_logits(objective: Objective) -> list[int]:
    """The rows of logits of each chunk that the forward and the backward pass compute."""
    rows, head = [], objective.model.head
    with head.register_forward_hook(lambda *call: rows.append(call[-1][..., 0].numel())):
        objective.loss(*BATCH).backward()
    return rows


def test_chunks_of_logits_are_computed_twice_and_not_stored():
    for chunk_tokens, rows in ((4, 4), (17, 9)):
        computed = computed_logits(Objective(gpt(), chunk_tokens=chunk_tokens))
        assert (max(computed), sum(computed)) == (rows, 2 * 18)
    for chunk_tokens in (18, 0, None, "auto"):  # a single chunk
        assert computed_logits(Objective(gpt(), chunk_tokens=chunk_tokens)) == [18]
    large = Objective(gpt(), chunk_tokens="auto")
    large.model.head = nn.Linear(8, 50257)
    assert 0.99 < large.chunk_rows(torch.zeros(1, 1024)) * 50257 * 4 / LOGIT_BYTES <= 1


@pytest.mark.slow
@pytest.mark.parametrize(("chunk_tokens", "checkpointing"), [(None, True), (9, False)])
def test_the_loss_is_compiled_once_and_gives_the_same_gradients(chunk_tokens, checkpointing):
    model = gpt(layers=1, activation=ReluSquared).train()
    model.checkpoint_activations = checkpointing
    objective = Objective(model, chunk_tokens=chunk_tokens)
    plain = training_step(model, TOKENS, chunk_tokens=chunk_tokens, checkpointing=checkpointing)
    names = list(model.state_dict())
    torch._dynamo.reset()
    assert compile_in_place(objective, BATCH, nullcontext()) is None
    frames = torch._dynamo.utils.counters["frames"]["ok"]
    assert frames >= (1 if chunk_tokens is None else 2)
    loss = objective.loss(*BATCH)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    assert torch._dynamo.utils.counters["frames"]["ok"] == frames  # not compiled again
    torch.testing.assert_close([loss.detach(), *gradients], plain, rtol=1e-4, atol=1e-5)
    assert list(model.state_dict()) == names


def failing_backend(error: Exception):
    """`torch.compile` with a backend that raises `error`."""
    return partial(torch.compile, backend=Mock(side_effect=error))


def test_a_failed_compilation_is_a_problem_and_other_errors_are_raised(monkeypatch):
    """Afterwards, the objective is uncompiled."""
    torch._dynamo.reset()
    objective = Objective(gpt().train(), chunk_tokens=9)
    plain = objective.loss(*BATCH)
    with monkeypatch.context() as broken:
        broken.setattr("torch.compile", failing_backend(ValueError("no compiler here")))
        problem = compile_in_place(objective, BATCH, nullcontext())
    assert "no compiler here" in problem
    assert "\n" not in problem
    assert torch.equal(objective.loss(*BATCH), plain)
    assert objective.model._compiled_call_impl is None
    out_of_memory = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    with monkeypatch.context() as broken:
        broken.setattr("torch.compile", failing_backend(out_of_memory))
        with pytest.raises(RuntimeError, match="out of memory") as raised:
            compile_in_place(objective, BATCH, nullcontext())
    assert ran_out_of_memory(raised.value)
    monkeypatch.setattr(objective, "loss", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        compile_in_place(objective, BATCH, nullcontext())
