"""Training batches from a token array.

A batch is a pair (inputs, targets) of int64 tensors (B, T). The target at each position is the next
token. Inputs and targets are views of one tensor (B, T + 1), so they are not contiguous.

Shapes: B batch, T block_size, N tokens.
"""

import itertools
import math
import mmap
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from headscope.errors import UserError
from headscope.machine import machine_memory

Batch = tuple[Tensor, Tensor]

Gather = Callable[[np.ndarray], Tensor]
"""Maps start positions (B,) to the windows (B, length) that begin there, as int64."""

ROUNDS = 4
"""Rounds of `Shuffle`. For a perfectly random hash, two would be enough (Luby & Rackoff 1988)."""

FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))  # SplitMix64's
HALF = np.uint64(32)


class TrainingBatches(IterableDataset[Batch]):
    """Endless training batches. Each is a pure function of (seed, rank, its index).

    Each epoch cuts the tokens (N,) into windows of T + 1 tokens, where neighbouring windows share
    one token. Each epoch has a new random offset of the first window and a new random order of the
    windows (see `Shuffle`), and uses no window twice. Iteration begins at the batch with the index
    `start`, so a resumed run gets the same batches as an uninterrupted run. If `device` is given,
    the tokens are copied to this device and the batches are made there.

    A text that is too short for one batch of different windows gives batches of windows at random
    places. Raises UserError when there are too few tokens for one window.
    """

    def __init__(
        self,
        tokens: np.ndarray,
        *,
        block_size: int,
        batch_size: int,
        seed: int,
        start: int = 0,
        rank: int = 0,
        world_size: int = 1,
        device: torch.device | None = None,
    ) -> None:
        # The random offset skips up to one window of tokens at the start.
        self.windows = (len(tokens) - 1) // block_size - 1
        self.batches_per_epoch = self.windows // (batch_size * world_size)
        if len(tokens) <= block_size:
            problem = f"{len(tokens)} training tokens are too few for model.block_size={block_size}"
            raise UserError(f"{problem}: take more text, or a smaller block_size")
        self.tokens, self.device = tokens, device
        self.block_size, self.batch_size = block_size, batch_size
        self.seed, self.start = seed, start
        self.rank, self.world_size = rank, world_size

    def __iter__(self) -> Iterator[Batch]:
        length = self.block_size + 1
        if self.device:
            gather = gather_on_device(self.tokens, length, self.device)
        else:
            gather = gather_on_cpu(self.tokens, length)
        for starts in self.starts():
            yield inputs_and_targets(gather(starts))

    def __getstate__(self) -> dict[str, Any]:
        """The state that is sent to another process: of a memory-mapped file, its path."""
        tokens = self.tokens
        # Only the whole map has an mmap as its base. A slice is sent as bytes, because its
        # attribute `offset` is wrong: it is the offset of the whole map.
        if isinstance(tokens, np.memmap) and isinstance(tokens.base, mmap.mmap):
            file, dtype, shape = tokens.filename, tokens.dtype, tokens.shape
            tokens = partial(np.memmap, file, dtype, "r", tokens.offset, shape)
        return self.__dict__ | {"tokens": tokens}

    def __setstate__(self, state: dict[str, Any]) -> None:
        tokens = state["tokens"]
        self.__dict__ = state | {"tokens": tokens() if isinstance(tokens, partial) else tokens}

    def starts(self) -> Iterator[np.ndarray]:
        """Yields the start positions (B,) of the windows of each batch."""
        if self.batches_per_epoch == 0:
            places = len(self.tokens) - self.block_size
            for batch in itertools.count(self.start):
                random = np.random.default_rng([self.seed, batch])
                yield random.integers(places, size=(self.world_size, self.batch_size))[self.rank]
        first_epoch, first_batch = divmod(self.start, self.batches_per_epoch)
        for epoch in itertools.count(first_epoch):
            random = np.random.default_rng([self.seed, epoch])
            offset = random.integers(self.block_size)
            shuffle = Shuffle(self.windows, random)
            for batch in range(first_batch, self.batches_per_epoch):
                first = (batch * self.world_size + self.rank) * self.batch_size
                yield shuffle(first + np.arange(self.batch_size)) * self.block_size + offset
            first_batch = 0


class Shuffle:
    """A random permutation of range(size). An element is computed when needed, in constant memory.

    This is a Feistel network (Luby & Rackoff 1988). The numbers 0, 1, 2 and so on fill a grid with
    about sqrt(size) rows and columns. Each round first shifts every column cyclically by a hash of
    its column index, and then every row by a hash of its row index. Both shifts are invertible, so
    the result is a permutation of the grid. The grid can have more cells than `size`: a result that
    is not below `size` is permuted again until it is (cycle walking). Black & Rogaway 2002 describe
    both ("Ciphers with Arbitrary Finite Domains"). `random` draws the keys of the hash.
    """

    def __init__(self, size: int, random: np.random.Generator) -> None:
        rows = math.isqrt(size - 1) + 1
        self.size = np.uint64(size)
        self.rows = np.uint64(rows)
        self.columns = np.uint64(-(-size // rows))
        self.keys = random.integers(2**64, size=(ROUNDS, 2), dtype=np.uint64)

    def __call__(self, indices: np.ndarray) -> np.ndarray:
        """The elements of the permutation at `indices`. Both are int64 of any shape."""
        result = self._permute_grid(indices.astype(np.uint64))
        while (outside := result >= self.size).any():
            result[outside] = self._permute_grid(result[outside])
        return result.astype(np.int64)

    def _permute_grid(self, cells: np.ndarray) -> np.ndarray:
        row, column = np.divmod(cells, self.columns)
        for column_key, row_key in self.keys:
            row = (row + hash_with_key(column, column_key)) % self.rows
            column = (column + hash_with_key(row, row_key)) % self.columns
        return row * self.columns + column


def hash_with_key(numbers: np.ndarray, key: np.uint64) -> np.ndarray:
    """A pseudo-random 32-bit hash of each number. Each key gives a different hash function."""
    bits = (numbers + key) * FACTORS[0]
    bits ^= bits >> HALF
    return (bits * FACTORS[1]) >> HALF


def gather_on_cpu(tokens: np.ndarray, length: int) -> Gather:
    """Returns a function that copies windows from `tokens`, in memory or memory-mapped."""
    do_not_read_ahead(tokens)
    windows = sliding_window_view(np.asarray(tokens), length)  # (N - length + 1, length), a view

    def gather(starts: np.ndarray) -> Tensor:
        return torch.from_numpy(windows[starts].astype(np.int64))

    return gather


def do_not_read_ahead(tokens: np.ndarray) -> None:
    """Tells the operating system not to read ahead in the file of `tokens`, if they need more than
    half of the memory. It helps with a small file, but delays every batch from a large one."""
    mapped = tokens.base
    if isinstance(mapped, mmap.mmap) and tokens.nbytes > machine_memory() / 2:
        with suppress(AttributeError):  # Windows has no madvise
            mapped.madvise(mmap.MADV_RANDOM)


def gather_on_device(tokens: np.ndarray, length: int, device: torch.device) -> Gather:
    """Copies the tokens to `device` once. Returns a function that gathers windows there."""
    bits = 8 * tokens.itemsize
    # As signed integers, because torch cannot index unsigned integers on every device.
    device_tokens = torch.tensor(tokens.view(f"int{bits}"), device=device)
    offsets = torch.arange(length, device=device)

    def gather(starts: np.ndarray) -> Tensor:
        # This copy does not wait for the GPU. `starts` may be freed meanwhile, because CUDA copies
        # small arrays into its own buffer before `to` returns.
        device_starts = torch.from_numpy(starts).to(device, non_blocking=True)
        return device_tokens[device_starts[:, None] + offsets].long() & (1 << bits) - 1

    return gather


def prefetched(batches: TrainingBatches) -> DataLoader[Batch]:
    """A loader of the same batches in the same order, prefetched by one worker process into pinned
    memory. The process is spawned, because CUDA does not work in a forked process."""
    return DataLoader(
        batches,
        batch_size=None,
        num_workers=1,
        pin_memory=True,
        worker_init_fn=ignore_interrupts,
        multiprocessing_context="spawn",
        generator=torch.Generator(),  # otherwise DataLoader uses the global generator
    )


def ignore_interrupts(worker: int) -> None:
    """Ctrl-C reaches the worker process too. Only the training process should react to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def inputs_and_targets(windows: Tensor) -> Batch:
    """Splits windows (B, T + 1) into inputs and targets, as views of the windows."""
    return windows[:, :-1], windows[:, 1:]  # (B, T)
