"""Chunked losses and compilation give the same loss and gradients."""

from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from choices import EACH, every_part
from small_gpt import gpt, some_tokens, variant
from torch import Tensor, nn

from headscope.errors import ran_out_of_memory
from headscope.nn import GPT, ReluSquared
from headscope.training.objective import LOGIT_BYTES, Objective, compile_in_place, logit_bytes

BATCH = (some_tokens()[:, :-1], some_tokens()[:, 1:])


def step(
    model: GPT, *, chunk_tokens: int | None = None, checkpointing: bool = False
) -> list[Tensor]:
    """The loss of `BATCH`, then the gradient of every parameter."""
    torch.manual_seed(2)
    model.train().checkpoint_activations = checkpointing
    loss = Objective(model, chunk_tokens=chunk_tokens).loss(*BATCH)
    parameters = list(model.parameters())
    return [loss.detach(), *torch.autograd.grad(loss, parameters, materialize_grads=True)]


# --- the loss in chunks ---


@every_part
def test_a_chunked_loss_and_its_gradients_equal_the_plain_ones(pair):
    """Covers tied and untied output heads."""
    model = gpt(**variant(pair), dropout=0.2)
    model.logit_cap = 3.0 if EACH.index(pair) % 2 else None
    plain = step(model)
    for rows, checkpointing in ((1, False), (5, True), (17, False)):
        chunked = step(model, chunk_tokens=rows, checkpointing=checkpointing)
        torch.testing.assert_close(chunked, plain, rtol=1e-5, atol=1e-6)


def computed_logits(objective: Objective) -> tuple[int, int]:
    """The largest number of rows of logits that are computed at once, and the number of all rows
    that are computed in the forward and the backward pass."""
    rows = []
    hook = objective.model.head.register_forward_hook(
        lambda module, inputs, out: rows.append(out.numel() // out.size(-1))
    )
    objective.loss(*BATCH).backward()
    hook.remove()
    return max(rows), sum(rows)


def test_chunks_of_logits_are_computed_twice_and_not_stored():
    for chunk_tokens, rows in ((4, 4), (17, 9)):
        assert computed_logits(Objective(gpt(), chunk_tokens=chunk_tokens)) == (rows, 2 * 18)
    for chunk_tokens in (18, 0, None, "auto"):  # a single chunk
        assert computed_logits(Objective(gpt(), chunk_tokens=chunk_tokens)) == (18, 18)


def test_auto_chunks_have_a_share_of_the_memory_and_a_small_batch_is_one_chunk(monkeypatch):
    objective = Objective(gpt(), chunk_tokens="auto")
    assert objective.chunk_rows(torch.zeros(12, 64)) is None
    objective.model.head = nn.Linear(8, 50257)
    rows = objective.chunk_rows(torch.zeros(1, 1024))
    assert 0.99 * LOGIT_BYTES < rows * 50257 * 4 <= LOGIT_BYTES == logit_bytes(torch.device("cpu"))
    for gib, mib in ((1, 64), (24, 384), (80, 1280)):
        device = SimpleNamespace(total_memory=gib * 2**30)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _, device=device: device)
        assert logit_bytes(torch.device("cuda")) == mib * 2**20


@pytest.mark.parametrize("chunk_tokens", [None, 5])
def test_loss_sum_is_the_mean_loss_times_the_tokens(chunk_tokens):
    objective = Objective(gpt(), chunk_tokens=chunk_tokens)
    torch.testing.assert_close(
        objective.loss_sum(*BATCH) / BATCH[1].numel(), objective.loss(*BATCH), rtol=1e-6, atol=0
    )


# --- compiled ---


@pytest.mark.slow
@pytest.mark.parametrize(("chunk_tokens", "checkpointing"), [(None, True), (9, False)])
def test_the_loss_is_compiled_once_and_gives_the_same_gradients(chunk_tokens, checkpointing):
    model = gpt(layers=1, activation=ReluSquared).train()
    model.checkpoint_activations = checkpointing
    objective = Objective(model, chunk_tokens=chunk_tokens)
    plain = step(model, chunk_tokens=chunk_tokens, checkpointing=checkpointing)
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

    def backend(graph, inputs):
        raise error

    return partial(torch.compile, backend=backend)


def test_a_failed_compilation_leaves_the_objective_uncompiled(monkeypatch):
    objective = Objective(gpt().train(), chunk_tokens=9)
    plain = objective.loss(*BATCH)
    with monkeypatch.context() as broken:
        broken.setattr("torch.compile", failing_backend(ValueError("no compiler here")))
        problem = compile_in_place(objective, BATCH, nullcontext())
    assert "no compiler here" in problem
    assert "\n" not in problem
    assert torch.equal(objective.loss(*BATCH), plain)
    assert objective.model._compiled_call_impl is None


def test_out_of_memory_and_errors_of_the_loss_during_compilation_are_raised(monkeypatch):
    torch._dynamo.reset()
    objective = Objective(gpt().train(), chunk_tokens=None)
    out_of_memory = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    with monkeypatch.context() as broken:
        broken.setattr("torch.compile", failing_backend(out_of_memory))
        with pytest.raises(RuntimeError, match="out of memory") as raised:
            compile_in_place(objective, BATCH, nullcontext())
    assert ran_out_of_memory(raised.value)
    monkeypatch.setattr(objective, "loss", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        compile_in_place(objective, BATCH, nullcontext())
