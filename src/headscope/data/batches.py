"""Batches out of a token array. Both kinds give (inputs, targets), each (B, T) int64: the target of
a token is the token after it.

Shapes: B batch, T block_size, N tokens.
"""

import itertools
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset

Batch = tuple[Tensor, Tensor]


class TrainingBatches(IterableDataset[Batch]):
    """Endless batches in an order that is a pure function of (seed, index, rank).

    An epoch cuts the tokens (N,) into windows of T + 1 that overlap by one token, at a phase drawn
    anew, and deals every window once, in an order drawn anew. So a run that starts at batch
    `start` sees what an uninterrupted one would have seen from there on.

    Raises ValueError when there are too few tokens for one batch.
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
    ) -> None:
        # A phase takes up to a window from the front.
        self.windows = (len(tokens) - 1) // block_size - 1
        self.batches_per_epoch = self.windows // (batch_size * world_size)
        if self.batches_per_epoch < 1:
            raise ValueError(
                f"{len(tokens)} training tokens are too few for one batch of "
                f"{batch_size * world_size} x {block_size}: take more text, or a smaller "
                "trainer.batch_size or model.block_size"
            )
        self.tokens = tokens
        self.block_size = block_size
        self.batch_size = batch_size
        self.seed = seed
        self.start = start
        self.rank = rank
        self.world_size = world_size
        self.reach = np.arange(block_size + 1)

    def __iter__(self) -> Iterator[Batch]:
        epoch = -1
        for index in itertools.count(self.start):
            if index // self.batches_per_epoch != epoch:
                epoch = index // self.batches_per_epoch
                offsets = self._offsets(epoch)
            place = index % self.batches_per_epoch * self.world_size + self.rank
            starts = offsets[place * self.batch_size :][: self.batch_size]
            window = self.tokens[starts[:, None] + self.reach]
            yield as_batch(window[:, :-1], window[:, 1:])

    def _offsets(self, epoch: int) -> np.ndarray:
        """Where each window of an epoch starts, in the order they are dealt."""
        random = np.random.default_rng([self.seed, epoch])
        phase = random.integers(self.block_size)
        return random.permutation(self.windows) * self.block_size + phase


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
            raise ValueError(f"{len(tokens)} tokens of validation text: there must be at least 2")
        self.tokens = tokens
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
            window = self.tokens[starts[first : first + self.batch_size, None] + reach]
            yield as_batch(window[:, :-1], window[:, 1:])
        if rest and full % self.every == 0:
            window = self.tokens[None, full * self.block_size :]
            yield as_batch(window[:, :-1], window[:, 1:])


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


def as_batch(inputs: np.ndarray, targets: np.ndarray) -> Batch:
    return (
        torch.from_numpy(inputs.astype(np.int64)),
        torch.from_numpy(targets.astype(np.int64)),
    )
