"""The laws of batches: their order is a pure function of seed and place, every token has its turn,
places look random, and batches are made where they are used.

The tokens are their own positions, so that a batch tells where it was cut.
"""

import math
import multiprocessing
import os
import pickle
import signal
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from headscope.data import module
from headscope.data.batches import Shuffle, TrainingBatches, prefetched
from headscope.data.module import TokenDataModule, validation_stride
from headscope.data.store import TokenStore
from headscope.data.tokenizer import byte
from headscope.data.windows import ValidationWindows

quick = settings(max_examples=60)
sizes = st.integers(1, 5)


def dealt(batches, count=None):
    """The next `count` batches' inputs and targets, as lists."""
    return [(inputs.tolist(), targets.tolist()) for inputs, targets in islice(batches, count)]


def numbers(rows):
    return [token for row in rows for token in row]


@st.composite
def trainings(draw, short=False):
    """Tokens and options for TrainingBatches: at least one batch, or if `short`, a part of one."""
    block_size, batch_size, world_size = draw(st.integers(1, 8)), draw(sizes), draw(sizes)
    least = block_size * (batch_size * world_size + 1) + 1
    count = st.integers(block_size + 1, least) if short else st.integers(least, least + 150)
    tokens = 65_000 + np.arange(draw(count), dtype=np.uint16)  # no int16 has them
    options = {"block_size": block_size, "batch_size": batch_size, "world_size": world_size}
    return tokens, {**options, "seed": draw(st.integers(0, 2**32))}


@quick
@given(trainings() | trainings(short=True), st.integers(0, 40))
def test_a_batch_is_a_function_of_seed_and_place_and_ranks_share_one_greater_batch(training, start):
    tokens, options = training
    size, ranks = options["batch_size"], options["world_size"]
    one = options | {"batch_size": size * ranks, "world_size": 1}
    whole = dealt(TrainingBatches(tokens, **one), start + 5)[start:]
    torch.manual_seed(start)
    state = torch.get_rng_state()
    for rank in range(ranks):
        rows = slice(rank * size, (rank + 1) * size)
        part = [(inputs[rows], targets[rows]) for inputs, targets in whole]
        for device in (None, torch.device("cpu")):  # tokens are read from a file, or in memory
            batches = TrainingBatches(tokens, rank=rank, start=start, device=device, **options)
            assert dealt(batches, 5) == part
    assert torch.equal(torch.get_rng_state(), state)


@quick
@given(trainings(), st.integers(0, 3))
def test_an_epoch_deals_nearly_all_tokens_each_once_and_targets_follow_inputs(training, epoch):
    tokens, options = training
    predicted = []
    for rank in range(options["world_size"]):
        batches = TrainingBatches(tokens, rank=rank, **options)
        length = batches.batches_per_epoch
        batches = TrainingBatches(tokens, rank=rank, start=epoch * length, **options)
        for inputs, targets in islice(batches, length):
            assert inputs.shape == (options["batch_size"], options["block_size"])
            assert inputs.dtype == targets.dtype == torch.int64
            assert torch.equal(inputs, inputs[:, :1] + torch.arange(options["block_size"]))
            assert torch.equal(targets, inputs + 1)
            predicted += numbers(targets.tolist())
    assert len(set(predicted)) == len(predicted)
    # What is left over at the ends is under two windows, what fills no batch is under a batch.
    batch = options["batch_size"] * options["world_size"]
    assert len(tokens) - 1 - len(predicted) < options["block_size"] * (2 + batch)


def test_every_seed_and_epoch_has_another_order_and_offset():
    starts, predicted = set(), set()
    for seed in range(3):
        batches = TrainingBatches(np.arange(1000), block_size=8, batch_size=2, seed=seed)
        length = batches.batches_per_epoch
        windows = dealt(batches, 30 * length)
        predicted.update(token for _, targets in windows for token in numbers(targets))
        epochs = [windows[epoch * length :][:length] for epoch in range(30)]
        starts |= {tuple(row[0] for inputs, _ in epoch for row in inputs) for epoch in epochs}
    assert len(starts) == 90
    assert {first % 8 for first, *_ in starts} == {*range(8)}
    assert predicted >= {*range(1, 1000 - 8)}


@quick
@given(trainings(), st.integers(1, 20))
def test_less_than_a_batch_gives_windows_anywhere_and_less_than_a_window_an_error(training, more):
    _, options = training
    size, batch = options["block_size"], options["batch_size"] * options["world_size"]
    tokens = np.arange(min(size + more, (batch + 1) * size))
    starts = set()
    for inputs, targets in islice(TrainingBatches(tokens, **options), 300):
        assert torch.equal(inputs, inputs[:, :1] + torch.arange(size))
        assert torch.equal(targets, inputs + 1)
        starts |= {*inputs[:, 0].tolist()}
    assert starts == {*range(len(tokens) - size)} or batch == 1
    with refused(f"{size} training tokens", f"model.block_size={size}"):
        TrainingBatches(tokens[:size], **options)
    with refused("has 1 tokens, but needs at least 2"):
        ValidationWindows(np.arange(1), block_size=4, batch_size=1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:'pin_memory' argument")  # where there is no GPU
def test_a_process_ahead_reads_the_same_batches_and_goes_on_through_ctrl_c(tmp_path):
    np.arange(0, 2**16, 13, dtype=np.uint16).tofile(tmp_path / "tokens")
    tokens = np.memmap(tmp_path / "tokens", dtype=np.uint16, mode="r")
    batches = TrainingBatches(tokens, block_size=16, batch_size=4, seed=5, start=7)
    assert len(pickle.dumps(batches)) < 2000  # a memory map goes to another process by its path
    expected = dealt(batches, 300)
    others, state = multiprocessing.active_children(), torch.get_rng_state()
    ahead = iter(prefetched(batches))
    assert dealt(ahead, 1) == expected[:1]
    [process] = [child for child in multiprocessing.active_children() if child not in others]
    os.kill(process.pid, signal.SIGINT)
    assert dealt(ahead, 299) == expected[1:]
    assert torch.equal(torch.get_rng_state(), state)


@quick
@given(st.integers(2, 200), st.integers(1, 40), sizes, sizes, st.integers(1, 7))
def test_validation_predicts_every_token_but_the_first_once_and_ranks_share_each_nth_window(
    length, block_size, batch_size, world_size, every
):
    tokens = np.arange(length, dtype=np.uint16)
    options = {"block_size": block_size, "batch_size": batch_size}
    predicted = []
    for inputs, targets in ValidationWindows(tokens, **options):
        assert inputs.dtype == targets.dtype == torch.int64
        assert torch.equal(targets, inputs + 1)
        assert len(inputs) <= batch_size
        assert inputs.size(1) <= block_size
        predicted += numbers(targets.tolist())
    assert predicted == list(range(1, length))
    rows = numbers(inputs for inputs, _ in dealt(ValidationWindows(tokens, **options)))
    whole = dealt(ValidationWindows(tokens, every=every, **options))
    assert numbers(inputs for inputs, _ in whole) == rows[::every]
    options |= {"every": every, "world_size": world_size}
    counts = set()
    for rank in range(world_size):
        part = dealt(ValidationWindows(tokens, rank=rank, **options))
        assert [batch for batch in part if batch != ([], [])] == whole[rank::world_size]
        counts.add(len(part))
    assert len(counts) == 1  # an empty batch is added where one is missing


def shuffle(size, *key):
    return Shuffle(size, np.random.default_rng(key))


def strays(counts):
    """By how many standard deviations counts are less even than chance makes them (chi squared)."""
    expected, freedom = counts.mean(), counts.size - 1
    return (((counts - expected) ** 2 / expected).sum() - freedom) / math.sqrt(2 * freedom)


@settings(max_examples=100)
@given(st.integers(1, 3000), st.integers(0, 2**32), st.data())
def test_every_number_has_one_place_also_alone(size, key, data):
    together = shuffle(size, key)(np.arange(size))
    assert sorted(together.tolist()) == list(range(size))
    place = data.draw(st.integers(0, size - 1))
    assert shuffle(size, key)(np.array([[place]])).tolist() == [[together[place]]]


@pytest.mark.parametrize("size", [2**20, 10**9, 2**40 + 5])
def test_in_a_large_one_a_place_is_had_once_and_says_nothing_of_its_neighbours_or_another_key(size):
    seen = 10_000  # places

    def portions(*key):
        """How far into the range the first numbers are, each from 0 to 1."""
        found = shuffle(size, *key)(np.arange(seen))
        assert len({*found.tolist()}) == seen
        assert 0 <= found.min() <= found.max() < size
        return (found + 0.5) / size

    def even(places):
        return strays(np.histogram(places, bins=100, range=(0, 1))[0]) < 5

    found = portions(0, 0)
    others = [portions(0, 1), portions(1, 0), *(np.roll(found, apart) for apart in (1, 2, 12, 64))]
    assert even(found)
    for other in others:
        assert even((found - other) % 1)
        assert abs(np.corrcoef(found, other)[0, 1]) < 5 / math.sqrt(seen)


# --- the data module ---

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
