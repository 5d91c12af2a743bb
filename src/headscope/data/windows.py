"""Windows of a token array: those of the validation, and those on which heads are shown.

Shapes: B batch, T block_size, N tokens.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from headscope.data.batches import Batch, inputs_and_targets
from headscope.errors import UserError

MEASURED_TOKENS = 4096
"""About the number of tokens in windows that are spread over a text."""


class ValidationWindows(IterableDataset[Batch]):
    """Batches of validation windows. The windows have T tokens, are in text order and do not
    overlap. So every token except the first is predicted exactly once.

    If the last window is shorter, it is a separate batch. If `every` is n, only every n-th window
    is used: a fixed subset, spread over the whole text. With several ranks, each rank gets every
    `world_size`-th batch. All ranks get the same number: the last batch may be empty (0, T).
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
            problem = f"the validation text has {len(tokens)} tokens, but needs at least 2"
            raise UserError(f"{problem}: add text")
        self.tokens, self.length = np.asarray(tokens), block_size + 1
        full, rest = divmod(len(tokens) - 1, block_size)
        starts = np.arange(0, full, every) * block_size
        batches = [starts[n : n + batch_size] for n in range(0, len(starts), batch_size)]
        if rest and full % every == 0:
            batches.append(np.array([full * block_size]))
        batches += [starts[:0]] * (-len(batches) % world_size)
        self.starts = batches[rank::world_size]

    def __len__(self) -> int:
        """The number of batches of each rank."""
        return len(self.starts)

    def __iter__(self) -> Iterator[Batch]:
        for starts in self.starts:
            length = min(self.length, len(self.tokens) - starts.max(initial=0))
            windows = self.tokens[starts[:, None] + np.arange(length)]
            yield inputs_and_targets(torch.from_numpy(windows.astype(np.int64)))


def spread_windows(tokens: np.ndarray, *, length: int, windows: int | None = None) -> Tensor:
    """Evenly spaced windows of the tokens, as an int64 tensor (`windows`, `length`). By default,
    they have about MEASURED_TOKENS tokens together. A short text gives fewer windows, and a text
    shorter than `length` gives one shorter window."""
    windows = windows or max(1, MEASURED_TOKENS // length)
    length = min(length, len(tokens))
    candidates = tokens[: len(tokens) // length * length].reshape(-1, length)
    chosen = np.linspace(0, len(candidates) - 1, min(windows, len(candidates))).astype(int)
    return torch.from_numpy(candidates[chosen].astype(np.int64))


def first_passage(tokens: np.ndarray, length: int) -> list[int]:
    """The first `length` tokens of a split, without the end-of-text token that begins it."""
    return tokens[1 : length + 1].tolist()
