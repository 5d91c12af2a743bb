"""On a GPU the vocabulary is padded to a multiple of 64 for the product of the output head. Nothing
but the time changes. Here tensors on the CPU say that they are on a GPU."""

from contextlib import nullcontext
from functools import partial
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F
from small_gpt import gpt, some_tokens
from torch import Tensor

from headscope.nn.precision import padded_linear
from headscope.trained.generation import generate_tokens
from headscope.training.objective import Objective, compile_in_place

BATCH = (some_tokens()[:, :-1], some_tokens()[:, 1:])


def step(objective: Objective) -> tuple[Tensor, ...]:
    """The loss of `BATCH`, the sum that validation computes, and the gradients."""
    loss = objective.loss(*BATCH)
    with torch.no_grad():
        total = objective.loss_sum(*BATCH)
    return loss.detach(), total, *torch.autograd.grad(loss, list(objective.model.parameters()))


@pytest.fixture
def padded(monkeypatch):
    """Records the padded products."""
    products = Mock(wraps=padded_linear)
    monkeypatch.setattr("headscope.nn.gpt.padded_linear", products)
    return products


@pytest.mark.parametrize("options", [{}, {"tied_head": False, "logit_cap": 3.0}])
@pytest.mark.parametrize("chunk_tokens", [None, 4])
def test_losses_gradients_and_samples_are_the_same(monkeypatch, padded, options, chunk_tokens):
    model = gpt(**options)
    objective = Objective(model, chunk_tokens=chunk_tokens)
    plain, options = step(objective), {"max_new_tokens": 20, "seeds": [0]}
    text = list(generate_tokens(model, [[1, 2, 3]], **options))
    assert not padded.called
    monkeypatch.setattr(Tensor, "is_cuda", True)
    torch.testing.assert_close(step(objective), plain, rtol=1e-5, atol=1e-6)
    assert padded.called
    padded.reset_mock()
    assert list(generate_tokens(model, [[1, 2, 3]], **options)) == text
    assert not padded.called  # for single tokens the copy of the matrix would take longer


def test_rows_are_padded_to_a_multiple_of_64(monkeypatch):
    product = Mock(wraps=F.linear)
    monkeypatch.setattr(F, "linear", product)
    for rows, padded in ((1, 64), (64, 64), (65, 128)):
        x, weight = torch.randn(5, 8), torch.randn(rows, 8)
        torch.testing.assert_close(padded_linear(x, weight), x @ weight.T)
        assert product.call_args.args[1].size(0) == padded


@pytest.mark.slow
@pytest.mark.parametrize("chunk_tokens", [None, 4])
def test_a_compiled_step_is_the_same(monkeypatch, chunk_tokens):
    monkeypatch.setattr("torch.compile", partial(torch.compile, backend="aot_eager"))
    torch._dynamo.reset()
    objective = Objective(gpt(layers=1, logit_cap=3.0).train(), chunk_tokens=chunk_tokens)
    plain = step(objective)
    # Dynamo sees that the tensors are on the CPU.
    head = objective.model.head
    monkeypatch.setattr(head, "forward", lambda x: padded_linear(x, head.weight))
    assert compile_in_place(objective, BATCH, nullcontext()) is None
    torch.testing.assert_close(step(objective), plain, rtol=1e-5, atol=1e-6)


@pytest.mark.gpu
def test_on_a_gpu_the_padded_head_gives_the_logits_of_a_cpu(padded):
    model = gpt(logit_cap=3.0)
    logits = model(BATCH[0])
    torch.testing.assert_close(model.cuda()(BATCH[0].cuda()).cpu(), logits, rtol=1e-4, atol=1e-4)
    assert padded.called
    with torch.autocast("cuda", torch.bfloat16):  # bf16 products, but the cap in float32
        assert model(BATCH[0].cuda()).dtype == torch.float32
    assert model.bfloat16()(BATCH[0].cuda()).dtype == torch.float32
