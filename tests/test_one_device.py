"""Everything that a GPU computes stays on it, checked without a GPU.

Tensors are fake: they have shapes and devices, but no numbers. The model is on the device `meta`,
which stands for a GPU. An operation that mixes it with a tensor on the CPU raises, as on a GPU.
"""

from collections.abc import Iterator
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from choices import every_part
from small_gpt import fresh, variant
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from headscope.analysis import pictures
from headscope.analysis.ablation import ablate_heads, mean_outputs
from headscope.analysis.metrics import head_metrics
from headscope.nn import GPT, Cache, attention_variants, dot_product
from headscope.nn.capture import capture
from headscope.trained.generation.choose_token import choose_tokens
from headscope.training.muon import Muon
from headscope.training.objective import Objective

GPU = torch.device("meta")


@pytest.fixture(autouse=True)
def fake(monkeypatch) -> Iterator[None]:
    for module in (attention_variants, dot_product):  # `meta` has no autocast
        monkeypatch.setattr(module, "no_autocast", lambda x: nullcontext())
    with FakeTensorMode(allow_non_fake_inputs=True):
        yield


def model_on_gpu(pair: tuple[str, str], **options) -> GPT:
    with GPU:
        return fresh(**variant(pair), document_mask=True, end_of_text=0, layers=1, **options)


def tokens_on_gpu(length: int) -> Tensor:
    return torch.zeros(2, length, dtype=torch.long, device=GPU)


@every_part
def test_a_training_step_stays_on_its_device(pair):
    model = model_on_gpu(pair, dropout=0.1, logit_cap=15.0).train()
    tokens = tokens_on_gpu(11)
    for chunk_tokens in [None, 4]:
        Objective(model, chunk_tokens=chunk_tokens).loss(tokens[:, :-1], tokens[:, 1:]).backward()
    parameters = [parameter for parameter in model.parameters() if parameter.grad is not None]
    assert all(parameter.grad.device == GPU for parameter in parameters)
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    matrices = [parameter for parameter in model.blocks.parameters() if parameter.dim() == 2]
    Muon(matrices, lr=0.1, momentum=0.9, weight_decay=0.1).step()


@every_part
@torch.no_grad()
def test_sampling_and_measuring_stay_on_their_device(pair, monkeypatch):
    model = model_on_gpu(pair).eval()
    cache = Cache(model, 2)
    for length in (3, 1):
        assert model.next_logits(tokens_on_gpu(length), cache).device == GPU
    weights = capture(model, tokens_on_gpu(7)).attention
    assert {metric.device for metric in head_metrics(weights).values()} == {GPU}
    texts = torch.zeros(3, 7, dtype=torch.long)  # on the CPU, as a report has them
    for means in (None, mean_outputs(model, texts)):
        ablate_heads(model, texts, texts, means=means)
    monkeypatch.setattr(pictures, "array", lambda values: np.ones(values.shape))
    pictures.position_picture(model.position)


def test_choosing_a_token_stays_on_its_device():
    logits, uniform = torch.zeros(2, 9, device=GPU), torch.zeros(2, device=GPU, dtype=torch.float64)
    for options in ({}, {"top_k": 3}, {"top_p": 0.8}, {"temperature": 0.0}):
        assert choose_tokens(logits, uniform=uniform, **options).device == GPU
