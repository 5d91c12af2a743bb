"""The laws of batches: their order is a pure function of seed and place, and every token has its
turn.

The tokens are their own positions, so that a batch tells where it was cut.
"""

import multiprocessing
import os
import pickle
import signal
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headscope.data.batches import TrainingBatches, ValidationWindows, prefetched

quick = settings(max_examples=60, deadline=None)
sizes = st.integers(1, 5)


def dealt(batches, count):
    """The next `count` batches' inputs and targets, as lists."""
    return [(inputs.tolist(), targets.tolist()) for inputs, targets in islice(batches, count)]


def numbers(tensors):
    """All the tokens in some tensors."""
    return [token for tensor in tensors for token in tensor.flatten().tolist()]


@st.composite
def trainings(draw):
    """Tokens and options for TrainingBatches, of any sizes that give at least one batch."""
    block_size, batch_size, world_size = draw(st.integers(1, 8)), draw(sizes), draw(sizes)
    least = block_size * (batch_size * world_size + 1) + 1
    tokens = np.arange(draw(st.integers(least, least + 150)), dtype=np.uint16)
    options = {"block_size": block_size, "batch_size": batch_size, "world_size": world_size}
    return tokens, {**options, "seed": draw(st.integers(0, 2**32))}


@quick
@given(trainings(), st.integers(0, 40))
def test_to_start_at_a_batch_is_to_skip_those_before(training, start):
    tokens, options = training
    rank = options["world_size"] - 1
    whole = TrainingBatches(tokens, rank=rank, **options)
    resumed = TrainingBatches(tokens, rank=rank, start=start, **options)
    assert dealt(resumed, 5) == dealt(whole, start + 5)[start:]
    assert dealt(resumed, 5) == dealt(resumed, 5)


@quick
@given(trainings())
def test_the_target_of_a_token_is_the_token_after_it(training):
    tokens, options = training
    for inputs, targets in islice(TrainingBatches(tokens, **options), 10):
        assert inputs.shape == targets.shape == (options["batch_size"], options["block_size"])
        assert inputs.dtype == targets.dtype == torch.int64
        assert torch.equal(targets, inputs + 1)
        assert torch.equal(inputs, inputs[:, :1] + torch.arange(options["block_size"]))


@quick
@given(trainings(), st.integers(0, 3))
def test_an_epoch_deals_no_token_twice_and_nearly_all(training, epoch):
    tokens, options = training
    predicted = []
    for rank in range(options["world_size"]):
        batches = TrainingBatches(tokens, rank=rank, **options)
        length = batches.batches_per_epoch
        batches = TrainingBatches(tokens, rank=rank, start=epoch * length, **options)
        predicted += numbers(targets for _, targets in islice(batches, length))
    assert len(set(predicted)) == len(predicted)
    # What is left over at the ends is under two windows, what fills no batch is under a batch.
    batch = options["batch_size"] * options["world_size"]
    assert len(tokens) - 1 - len(predicted) < options["block_size"] * (2 + batch)


@quick
@given(trainings())
def test_ranks_share_one_greater_batch(training):
    tokens, options = training
    world_size = options["world_size"]
    ranks = [dealt(TrainingBatches(tokens, rank=r, **options), 12) for r in range(world_size)]
    together = {"batch_size": options["batch_size"] * world_size, "world_size": 1}
    for index, (inputs, targets) in enumerate(
        dealt(TrainingBatches(tokens, **{**options, **together}), 12)
    ):
        assert inputs == [row for rank in ranks for row in rank[index][0]]
        assert targets == [row for rank in ranks for row in rank[index][1]]


def test_order_and_cuts_are_drawn_anew_for_every_seed_and_epoch():
    tokens = np.arange(1000)
    orders = []
    for seed in range(3):
        batches = TrainingBatches(tokens, block_size=8, batch_size=2, seed=seed)
        length = batches.batches_per_epoch
        windows = dealt(batches, 3 * length)
        orders += [windows[epoch * length :][:length] for epoch in range(3)]
    starts = [[row[0] for inputs, _ in order for row in inputs] for order in orders]
    assert len(set(map(tuple, starts))) == 9
    assert len({first[0] % 8 for first in starts}) > 1


def test_over_epochs_every_token_up_to_the_last_window_is_learned():
    tokens = np.arange(100)
    batches = TrainingBatches(tokens, block_size=8, batch_size=3, seed=0)
    predicted = numbers(targets for _, targets in islice(batches, 200))
    assert set(predicted) >= set(range(1, 100 - 8))


def test_the_order_knows_no_global_random_state():
    batches = TrainingBatches(np.arange(500), block_size=4, batch_size=2, seed=3)
    first = dealt(batches, 20)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    assert dealt(batches, 20) == first
    assert torch.equal(torch.get_rng_state(), state)


@quick
@given(trainings())
def test_too_few_tokens_for_a_batch_is_an_error_with_its_numbers(training):
    _, options = training
    batch = options["batch_size"] * options["world_size"]
    enough = np.arange((batch + 1) * options["block_size"] + 1)
    assert len(dealt(TrainingBatches(enough, **options), 3)) == 3
    message = f"^{len(enough) - 1} training tokens .* {batch} x {options['block_size']}: take more"
    with pytest.raises(ValueError, match=message):
        TrainingBatches(enough[:-1], **options)


unpinned = pytest.mark.filterwarnings("ignore:'pin_memory' argument")  # where there is no GPU


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
def test_a_batch_is_the_same_however_it_is_made(tmp_path, dtype):
    # Tokens of all sizes, those above half of the range too.
    np.arange(0, 2**16, 13, dtype=dtype).tofile(tmp_path / "tokens")
    tokens = np.memmap(tmp_path / "tokens", dtype=dtype, mode="r")
    options = {"block_size": 16, "batch_size": 4, "seed": 5, "start": 7, "world_size": 2, "rank": 1}
    plain = dealt(TrainingBatches(tokens, **options), 300)
    assert dealt(TrainingBatches(tokens, device=torch.device("cpu"), **options), 300) == plain
    assert any(token > 2**15 for inputs, _ in plain for row in inputs for token in row)


def test_a_memory_map_goes_to_another_process_by_its_path(tmp_path):
    np.arange(60_000, dtype=np.uint16).tofile(tmp_path / "tokens")
    tokens = np.memmap(tmp_path / "tokens", dtype=np.uint16, mode="r")
    options = {"block_size": 8, "batch_size": 3, "seed": 1}
    for part in (tokens, tokens[1000:5000], np.array(tokens)):
        batches = TrainingBatches(part, **options)
        sent = pickle.dumps(batches)
        assert (len(sent) < 2000) == (part is tokens)
        assert dealt(pickle.loads(sent), 300) == dealt(batches, 300)


@pytest.mark.slow
@unpinned
def test_a_process_ahead_reads_the_same_batches_from_the_file(tmp_path):
    np.arange(60_000, dtype=np.uint16).tofile(tmp_path / "tokens")
    tokens = np.memmap(tmp_path / "tokens", dtype=np.uint16, mode="r")
    batches = TrainingBatches(tokens, block_size=8, batch_size=3, seed=1, start=5)
    state = torch.get_rng_state()
    assert dealt(prefetched(batches), 300) == dealt(batches, 300)
    assert torch.equal(torch.get_rng_state(), state)
    (tmp_path / "tokens").rename(tmp_path / "elsewhere")
    with pytest.raises(FileNotFoundError):
        pickle.loads(pickle.dumps(batches))


@pytest.mark.slow
@unpinned
def test_a_process_ahead_goes_on_through_ctrl_c():
    tokens = np.arange(5000, dtype=np.uint16)
    batches = TrainingBatches(tokens, block_size=8, batch_size=3, seed=1)
    others = multiprocessing.active_children()
    ahead = iter(prefetched(batches))
    next(ahead)
    [process] = [child for child in multiprocessing.active_children() if child not in others]
    os.kill(process.pid, signal.SIGINT)
    assert dealt(ahead, 50) == dealt(batches, 51)[1:]


lengths = st.integers(2, 200)
block_sizes = st.integers(1, 40)


@quick
@given(lengths, block_sizes, sizes)
def test_validation_predicts_every_token_but_the_first_once(length, block_size, batch_size):
    tokens = np.arange(length, dtype=np.uint16)
    windows = list(ValidationWindows(tokens, block_size=block_size, batch_size=batch_size))
    assert numbers(targets for _, targets in windows) == list(range(1, length))
    for inputs, targets in windows:
        assert inputs.dtype == targets.dtype == torch.int64
        assert torch.equal(targets, inputs + 1)
        assert inputs.shape[0] <= batch_size
        assert inputs.shape[1] <= block_size


@quick
@given(lengths, block_sizes, sizes, st.integers(2, 7))
def test_a_part_of_validation_is_each_nth_window_of_it(length, block_size, batch_size, every):
    options = {"block_size": block_size, "batch_size": batch_size}
    tokens = np.arange(length)

    def rows(windows):
        return [row.tolist() for inputs, _ in windows for row in inputs]

    whole = rows(ValidationWindows(tokens, **options))
    assert rows(ValidationWindows(tokens, every=every, **options)) == whole[::every]


@quick
@given(lengths, block_sizes, sizes, sizes, st.integers(1, 3))
def test_ranks_share_out_validation(length, block_size, batch_size, world_size, every):
    options = {"block_size": block_size, "batch_size": batch_size, "every": every}
    tokens = np.arange(length)
    whole = dealt(ValidationWindows(tokens, **options), None)
    counts = set()
    for rank in range(world_size):
        part = dealt(ValidationWindows(tokens, rank=rank, world_size=world_size, **options), None)
        assert [batch for batch in part if batch != ([], [])] == whole[rank::world_size]
        counts.add(len(part))
    assert len(counts) == 1  # an empty batch is added where one is missing


def test_one_token_cannot_be_validated():
    with pytest.raises(ValueError, match="has 1 tokens, but needs at least 2"):
        ValidationWindows(np.arange(1), block_size=4, batch_size=1)


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux")
@pytest.mark.parametrize("large", [True, False])
def test_a_file_is_read_without_reading_ahead_only_if_it_fills_half_of_the_memory(
    tmp_path, monkeypatch, large
):
    file = tmp_path / "train.bin"
    np.arange(1000, dtype=np.uint16).tofile(file)
    monkeypatch.setattr("headscope.data.batches.machine_memory", lambda: 3999 if large else 4000)
    tokens = np.memmap(file, np.uint16, "r")
    batches = TrainingBatches(tokens, block_size=4, batch_size=2, seed=1)
    in_worker = pickle.loads(pickle.dumps(batches))  # maps the file again
    assert dealt(batches, 20) == dealt(in_worker, 20)
    maps = Path("/proc/self/smaps").read_text().split("VmFlags:")
    flags = [after.split("\n")[0] for before, after in pairwise(maps) if str(file) in before]
    assert [" rr " in each for each in flags] == [large, large]
