"""Batches out of a token array. Both kinds give (inputs, targets), each (B, T) int64: the target of
a token is the token after it. The two are views of one tensor (B, T + 1), so not contiguous.

Shapes: B batch, T block_size, N tokens.
"""

import itertools
import mmap
import signal
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from headscope.data.shuffle import Shuffle
from headscope.errors import UserError

Batch = tuple[Tensor, Tensor]

Cut = Callable[[np.ndarray], Tensor]
"""Takes where windows start (B,), gives the windows (B, length), int64."""

AT_ONCE = 64
"""Batches whose places are computed together: numpy takes about as long for one."""


class TrainingBatches(IterableDataset[Batch]):
    """Endless batches in an order that is a pure function of (seed, index, rank).

    An epoch cuts the tokens (N,) into windows of T + 1 that overlap by one token, at a phase drawn
    anew, and deals every window once, in an order drawn anew (see `Shuffle`: nothing is kept of
    it). So a run that starts at batch `start` sees what an uninterrupted one would have seen from
    there on. With a `device` a copy of the tokens is held there, and batches are made there.

    Raises UserError when there are too few tokens for one batch.
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
        # A phase takes up to a window from the front.
        self.windows = (len(tokens) - 1) // block_size - 1
        self.batches_per_epoch = self.windows // (batch_size * world_size)
        if self.batches_per_epoch < 1:
            raise UserError(
                f"{len(tokens)} training tokens are too few for one batch of "
                f"{batch_size * world_size} x {block_size}: take more text, or a smaller "
                "trainer.batch_size or model.block_size"
            )
        self.tokens = tokens
        self.device = device
        self.block_size = block_size
        self.batch_size = batch_size
        self.seed = seed
        self.start = start
        self.rank = rank
        self.world_size = world_size

    def __iter__(self) -> Iterator[Batch]:
        length = self.block_size + 1
        device = self.device
        cut = cut_on(device, self.tokens, length) if device else cut_here(self.tokens, length)
        for starts in self.starts():
            yield inputs_and_targets(cut(starts))

    def __getstate__(self) -> dict[str, Any]:
        """For another process: a memory-mapped file goes there by its path, not with its bytes."""
        tokens = self.tokens
        # The base of a slice is the whole map: a slice would be another part of the file.
        if isinstance(tokens, np.memmap) and isinstance(tokens.base, mmap.mmap):
            file, dtype, shape = tokens.filename, tokens.dtype, tokens.shape
            tokens = partial(np.memmap, file, dtype, "r", tokens.offset, shape)
        return self.__dict__ | {"tokens": tokens}

    def __setstate__(self, state: dict[str, Any]) -> None:
        tokens = state["tokens"]
        self.__dict__ = state | {"tokens": tokens() if isinstance(tokens, partial) else tokens}

    def starts(self) -> Iterator[np.ndarray]:
        """Where in the tokens the windows of each batch start (B,)."""
        first_epoch, done = divmod(self.start, self.batches_per_epoch)
        for epoch in itertools.count(first_epoch):
            random = np.random.default_rng([self.seed, epoch])
            phase = random.integers(self.block_size)
            shuffle = Shuffle(self.windows, random)
            for index in range(done, self.batches_per_epoch, AT_ONCE):
                until = min(index + AT_ONCE, self.batches_per_epoch)
                turns = np.arange(index, until) * self.world_size + self.rank
                places = turns[:, None] * self.batch_size + np.arange(self.batch_size)
                yield from shuffle(places) * self.block_size + phase
            done = 0


def cut_here(tokens: np.ndarray, length: int) -> Cut:
    """From memory or a mapped file: a batch is one copy of its windows."""
    windows = sliding_window_view(np.asarray(tokens), length)  # (N - length + 1, length), a view

    def cut(starts: np.ndarray) -> Tensor:
        return torch.from_numpy(windows[starts].astype(np.int64))

    return cut


def cut_on(device: torch.device, tokens: np.ndarray, length: int) -> Cut:
    """On a device, from a copy of the tokens (uint16 or uint32) that is held there."""
    bits = 8 * tokens.itemsize
    # Torch cannot index its unsigned types on every device.
    held = torch.tensor(tokens.view(f"int{bits}"), device=device)
    reach = torch.arange(length, device=device)

    def cut(starts: np.ndarray) -> Tensor:
        # The GPU is not waited for: a few numbers are copied aside before this returns.
        there = torch.from_numpy(starts).to(device, non_blocking=True)
        return held[there[:, None] + reach].long() & (1 << bits) - 1

    return cut


def prefetched(batches: TrainingBatches) -> DataLoader[Batch]:
    """The same batches in the same order, made ahead by one process, in memory that a GPU reads
    without waiting. The process is spawned: CUDA does not survive a fork."""
    return DataLoader(
        batches,
        batch_size=None,
        num_workers=1,
        persistent_workers=True,  # else Lightning warns; there is one epoch without end
        pin_memory=True,
        worker_init_fn=ignore_interrupts,
        multiprocessing_context="spawn",
        generator=torch.Generator(),  # else it draws a global random number
    )


def ignore_interrupts(worker: int) -> None:
    """Ctrl-C goes to all processes; what follows from it is the training's to say."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class ValidationWindows(IterableDataset[Batch]):
    """Windows of T in order without overlap, so that every token but the first is predicted once.

    The last window may be shorter, and is then a batch of its own. With `every` above 1 only each
    `every`-th window is given: a fixed part, spread over the whole text. With several ranks, the
    batches are shared out between them.
    """

    def __init__(
        self,
        tokens: np.ndarray,
        *,
        block_size: int,
        batch_size: int,
        every: int = 1,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if len(tokens) < 2:
            raise UserError(f"{len(tokens)} tokens of validation text: there must be at least 2")
        self.tokens = np.asarray(tokens)
        self.block_size = block_size
        self.batch_size = batch_size
        self.every = every
        self.rank = rank
        self.world_size = world_size

    def __iter__(self) -> Iterator[Batch]:
        return itertools.islice(self._batches(), self.rank, None, self.world_size)

    def _batches(self) -> Iterator[Batch]:
        full, rest = divmod(len(self.tokens) - 1, self.block_size)
        starts = np.arange(0, full, self.every) * self.block_size
        reach = np.arange(self.block_size + 1)
        for first in range(0, len(starts), self.batch_size):
            yield as_batch(self.tokens[starts[first : first + self.batch_size, None] + reach])
        if rest and full % self.every == 0:
            yield as_batch(self.tokens[None, full * self.block_size :])


def spread_windows(tokens: np.ndarray, *, windows: int, length: int) -> Tensor:
    """Windows (N, T) of T = `length` tokens spread over a text, at most as many as it has; of a
    shorter text the whole."""
    length = min(length, len(tokens))
    whole = tokens[: len(tokens) // length * length].reshape(-1, length)
    chosen = np.linspace(0, len(whole) - 1, min(windows, len(whole))).astype(int)
    return torch.from_numpy(whole[chosen].astype(np.int64))


def first_passage(tokens: np.ndarray, length: int) -> list[int]:
    """The first tokens of a text, without the end of text that stands before every document."""
    return tokens[1 : length + 1].tolist()


def as_batch(windows: np.ndarray) -> Batch:
    return inputs_and_targets(torch.from_numpy(windows.astype(np.int64)))


def inputs_and_targets(windows: Tensor) -> Batch:
    """Views of windows (B, T + 1)."""
    return windows[:, :-1], windows[:, 1:]  # (B, T)
