"""How batches come to a training, and how much of the validation split a run can afford."""

from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headscope.data import module
from headscope.data.batches import TrainingBatches
from headscope.data.module import TokenDataModule, validation_stride
from headscope.data.store import TokenStore
from headscope.data.tokenizer import byte

TOKENS = np.arange(2000, dtype=np.uint16)
OPTIONS = {"block_size": 8, "batch_size": 4, "seed": 3}


def steps(device):
    """What a trainer on this device gets, three steps of two batches into its run."""
    store = TokenStore(folder=Path(), tokenizer=byte([]), train=TOKENS, validation=TOKENS)
    options = OPTIONS | {"validation_batch_size": 1, "validation_every": 1, "final_every": 1}
    data = TokenDataModule(store, accumulate=2, **options)
    strategy = SimpleNamespace(root_device=torch.device(device))
    counts = {"global_step": 3, "global_rank": 0, "world_size": 1, "overfit_batches": 0}
    data.trainer = SimpleNamespace(strategy=strategy, **counts)
    return iter(data.train_dataloader())


def assert_batches(found):
    """From the seventh batch of the sequence, two for each step."""
    plain = iter(TrainingBatches(TOKENS, start=6, **OPTIONS))
    for step in islice(found, 10):
        for batch, expected in zip(step, islice(plain, 2), strict=True):
            assert all(map(torch.equal, [half.cpu() for half in batch], expected))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_batches_are_made_where_they_are_used(device, monkeypatch):
    monkeypatch.setattr(module, "MAX_BYTES_ON_GPU", TOKENS.nbytes)
    monkeypatch.setattr(module, "prefetched", None)
    assert all(half.device.type == device for half in next(steps(device))[0])
    assert_batches(steps(device))


def test_a_corpus_too_large_for_a_gpu_is_read_ahead(monkeypatch):
    monkeypatch.setattr(module, "MAX_BYTES_ON_GPU", TOKENS.nbytes - 1)
    monkeypatch.setattr(module, "prefetched", lambda batches: ["read ahead"] * 2)
    assert next(steps("cuda")) == ["read ahead"] * 2


@pytest.mark.gpu
def test_beside_a_gpu_a_spawned_process_reads_ahead_into_pinned_memory(monkeypatch):
    torch.zeros(1, device="cuda")  # a forked process could not use CUDA any more
    monkeypatch.setattr(module, "MAX_BYTES_ON_GPU", 0)
    assert_batches(steps("cuda"))
    assert all(half.is_pinned() for half in next(steps("cuda"))[0])


@given(st.integers(1, 10**6), st.integers(500, 10**7))
def test_validation_costs_at_most_a_tenth_of_training(validation_tokens, training_tokens):
    stride = validation_stride(validation_tokens=validation_tokens, training_tokens=training_tokens)
    # Predicting a token costs a third of training on it.
    assert validation_tokens / stride / 3 <= training_tokens / 10
    if stride > 1:
        assert validation_tokens / (stride - 1) / 3 > training_tokens / 10
