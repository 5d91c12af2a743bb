"""How batches come to a training, and how much of the validation split a run can afford."""

from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from checkpoint_files import opened
from hypothesis import given
from hypothesis import strategies as st
from lightning.pytorch.trainer.connectors import data_connector
from running import SMALL, Script
from torch.utils.data import DataLoader

from headscope.data import module
from headscope.data.batches import TrainingBatches, prefetched
from headscope.data.module import TokenDataModule, validation_stride
from headscope.data.store import TokenStore
from headscope.data.tokenizer import byte

unpinned = pytest.mark.filterwarnings("ignore:'pin_memory' argument")  # where there is no GPU


def loader(device: str) -> TrainingBatches | DataLoader:
    """What a trainer on this device gets, three steps of two batches into its run."""
    tokens = np.arange(2000, dtype=np.uint16)
    store = TokenStore(folder=Path(), tokenizer=byte([]), train=tokens, validation=tokens)
    options = {"validation_batch_size": 1, "validation_every": 1, "final_every": 1, "seed": 3}
    data = TokenDataModule(store, block_size=8, batch_size=4, accumulate=2, **options)
    strategy = SimpleNamespace(root_device=torch.device(device))
    data.trainer = SimpleNamespace(global_step=3, global_rank=0, world_size=1, strategy=strategy)
    return data.train_dataloader()


def inputs(batches: TrainingBatches | DataLoader) -> list[list[list[int]]]:
    return [batch[0].tolist() for batch in islice(batches, 20)]


@pytest.mark.slow
@unpinned
def test_a_corpus_too_large_for_a_gpu_is_read_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = loader("cpu")
    assert isinstance(plain, TrainingBatches)
    assert plain.start == 6
    monkeypatch.setattr(module, "MAX_BYTES_ON_GPU", 3999)
    ahead = loader("cuda")
    assert isinstance(ahead, DataLoader)
    assert inputs(ahead) == inputs(plain)


@pytest.mark.gpu
def test_a_gpu_holds_a_small_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BYTES_ON_GPU", 4000)
    held = loader("cuda")
    assert all(half.device.type == "cuda" for half in next(iter(held)))
    assert inputs(held) == inputs(loader("cpu"))


@pytest.mark.gpu
def test_beside_a_gpu_a_spawned_process_reads_ahead_into_pinned_memory(
    script: Script, speeches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.zeros(1, device="cuda")  # a forked process could not use CUDA any more
    monkeypatch.setattr(module, "MAX_BYTES_ON_GPU", 0)
    ahead = loader("cuda")
    assert isinstance(ahead, DataLoader)
    assert ahead.multiprocessing_context.get_start_method() == "spawn"
    assert inputs(ahead) == inputs(loader("cpu"))
    assert all(half.is_pinned() for half in next(iter(ahead)))
    words = [*SMALL, f"data.path={speeches}", "trainer.max_steps=6", "trainer.compile=false"]
    said = script("train", *words, "trainer.accelerator=gpu", "hydra.run.dir=outputs/run")
    assert said.code == 0, said.err


@pytest.mark.slow
@unpinned
@pytest.mark.filterwarnings("error:The 'train_dataloader'")
def test_a_run_whose_batches_are_made_ahead_is_the_same_run_and_as_quiet(
    script: Script, speeches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*SMALL, f"data.path={speeches}", "trainer.max_steps=6", "trainer.val_every_steps=2"]
    assert script("train", *words, "hydra.run.dir=outputs/plain").code == 0
    # On a machine of many cores Lightning would ask for more processes.
    monkeypatch.setattr(data_connector, "suggested_max_num_workers", lambda devices: 8)
    plain = TokenDataModule.train_dataloader
    monkeypatch.setattr(TokenDataModule, "train_dataloader", lambda self: prefetched(plain(self)))
    said = script("train", *words, "hydra.run.dir=outputs/ahead")
    assert (said.code, said.err) == (0, "")
    one, other = (
        opened(f"outputs/{run}/checkpoints/last.safetensors")["tensors"]
        for run in ("plain", "ahead")
    )
    assert all(torch.equal(one[name], other[name]) for name in one)


@given(st.integers(1, 10**6), st.integers(500, 10**7))
def test_validation_costs_at_most_a_tenth_of_training(
    validation_tokens: int, training_tokens: int
) -> None:
    stride = validation_stride(validation_tokens=validation_tokens, training_tokens=training_tokens)
    # Predicting a token costs a third of training on it.
    assert validation_tokens / stride / 3 <= training_tokens / 10
    if stride > 1:
        assert validation_tokens / (stride - 1) / 3 > training_tokens / 10
