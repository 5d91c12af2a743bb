"""Compares the time and memory that headscope and nanoGPT need to make a training batch, from small
and large corpora."""

from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headscope.analysis.pictures.style import BLUE, ORANGE
from headscope.benchmarks import runner
from headscope.benchmarks.runner import Figures, Request, Result
from headscope.benchmarks.show import Line, Lines
from headscope.data.batches import Batch, TrainingBatches
from headscope.errors import UserError
from headscope.stop import temporary_folder
from headscope.training.check import check

RANDOM_TOKENS = 10**9
"""The rest of a larger corpus is a hole in its file, so that it needs no space on the disk."""


def measure(request: Request) -> Result:
    """Measures the microseconds per batch, and how much the memory of the process grows.

    The corpora are files of tokens in a temporary folder. Most of their pages have just been
    written, so they are still in memory. The pages of a hole are not in memory before their first
    use.
    """
    run, plan = request.run, request.suite
    check(run)
    sizes = sorted(set(plan.tokens))
    if not sizes or sizes[0] < 1:
        raise UserError(f"suite.tokens={plan.tokens} must hold at least one size, each at least 1")
    length, batch_size = run.model.block_size, run.trainer.batch_size
    make = partial(TrainingBatches, block_size=length, batch_size=batch_size, seed=run.seed)
    groups: dict[str, list[Any]] = {}
    for size in sizes:
        with temporary_folder() as folder:
            path = folder / "tokens.bin"
            write_tokens(path, size, seed=run.seed)
            batches: dict[str, Iterator[Batch]] = {
                "nanoGPT": nanogpt_batches(path, length, batch_size, run.seed),
                "headscope": iter(make(np.memmap(path, dtype=np.uint16, mode="r"))),
            }
            sides = {name: partial(turn, each, plan.batches) for name, each in batches.items()}
            measured = runner.alternate(sides, plan.rounds)
        groups[f"{size:,} tokens"] = runner.summarize(measured, reference="nanoGPT")
    lines = []
    for number, (name, colour) in enumerate({"nanoGPT": BLUE, "headscope": ORANGE}.items()):
        times = [rows[number]["microseconds"]["median"] for rows in groups.values()]
        lines.append(Line(name, sizes, times, colour))
    batch = f"a training batch of {batch_size} x {length} tokens"
    return Result(
        groups,
        {"microseconds": "microseconds", "memory_mib": "memory growth, MiB"},
        f"Microseconds to make {batch}: median of {plan.rounds} rounds of {plan.batches:,} "
        "batches. Memory growth: of the process in a round, without file pages. Ratio: to nanoGPT "
        "in the same round.",
        f"Time to make {batch}",
        [Lines("microseconds per batch (lower is faster)", "tokens in the corpus", lines, 10)],
    )


def turn(batches: Iterator[Batch], count: int) -> Figures:
    """Measure the time and memory of `count` batches, after one batch that is not measured."""
    next(batches)
    before = runner.process_mib("RssAnon")
    seconds = runner.seconds_of(lambda: [None for _ in islice(batches, count)], torch.device("cpu"))
    return {
        "microseconds": 1e6 * seconds / count,
        "memory_mib": runner.process_mib("RssAnon") - before,
    }


def nanogpt_batches(path: Path, length: int, batch_size: int, seed: int) -> Iterator[Batch]:
    """Yields batches as `get_batch` in nanoGPT's train.py makes them. `get_batch` opens the file
    again for every batch, and copies each sequence separately from a random position."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        data = np.memmap(path, dtype=np.uint16, mode="r")
        starts = torch.randint(len(data) - length, (batch_size,), generator=generator)
        rows = [torch.from_numpy(data[i : i + length].astype(np.int64)) for i in starts]
        nexts = [torch.from_numpy(data[i + 1 : i + 1 + length].astype(np.int64)) for i in starts]
        yield torch.stack(rows), torch.stack(nexts)


def write_tokens(path: Path, size: int, *, seed: int) -> None:
    """Write a file of `size` uint16 tokens. The first `RANDOM_TOKENS` are uniformly random, and are
    written ten million at a time. All others are zeros, and take no space on the disk."""
    random = np.random.default_rng(seed)
    with path.open("wb") as file:
        file.truncate(2 * size)
        for first in range(0, min(size, RANDOM_TOKENS), 10**7):
            count = min(10**7, size - first)
            random.integers(2**16, size=count, dtype=np.uint16).tofile(file)
