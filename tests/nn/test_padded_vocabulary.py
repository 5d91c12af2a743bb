"""On a GPU the vocabulary is padded to a multiple of 64 for the product of the output head. Nothing
but the time changes. Here tensors on the CPU say that they are on a GPU."""

from unittest.mock import Mock

import pytest
import torch
from small_gpt import gpt, some_tokens
from torch import Tensor

from headscope.nn.precision import padded_linear
from headscope.trained.generation.generate import generate_tokens
from headscope.training.objective import Objective

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
    text = list(generate_tokens(model, [1, 2, 3], **options))
    assert not padded.called
    monkeypatch.setattr(Tensor, "is_cuda", True)
    torch.testing.assert_close(step(objective), plain, rtol=1e-5, atol=1e-6)
    assert padded.called
    padded.reset_mock()
    assert list(generate_tokens(model, [1, 2, 3], **options)) == text
    assert not padded.called  # for single tokens the copy of the matrix would take longer


@pytest.mark.gpu
def test_on_a_gpu_the_padded_head_gives_the_logits_of_a_cpu(padded):
    model = gpt(logit_cap=3.0)
    logits = model(BATCH[0])
    torch.testing.assert_close(model.cuda()(BATCH[0].cuda()).cpu(), logits, rtol=1e-4, atol=1e-4)
    assert padded.called
    with torch.autocast("cuda", torch.bfloat16):  # bf16 products, but the cap in float32
        assert model(BATCH[0].cuda()).dtype == torch.float32
    assert model.bfloat16()(BATCH[0].cuda()).dtype == torch.float32
