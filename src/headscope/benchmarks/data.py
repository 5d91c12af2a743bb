"""The cost of making a batch from small and large corpora: ours, and nanoGPT's way."""

import itertools
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from headscope.analysis.pictures.style import BLUE, ORANGE
from headscope.benchmarks import data_side
from headscope.benchmarks.runner import Figures, Request, Result, fresh_process, summarize
from headscope.benchmarks.show import Line, Lines
from headscope.data.batches import TrainingBatches
from headscope.data.store import token_dtype
from headscope.errors import UserError
from headscope.training.check import check


def measure(request: Request) -> Result:
    """On corpora of random tokens in a temporary folder: microseconds per batch, milliseconds from
    opening the file to the first batch, and the memory that is no page of the file. The files were
    just written, so they are usually read from memory, not from the disk."""
    run, plan = request.run, request.suite
    check(run)
    sizes = sorted(set(plan.tokens))
    if not sizes or sizes[0] < 1:
        raise UserError(f"suite.tokens={plan.tokens} must hold at least one size, each at least 1")
    length, batch_size = run.model.block_size, run.trainer.batch_size
    smallest = np.broadcast_to(np.uint16(0), sizes[0])  # takes no memory
    TrainingBatches(smallest, block_size=length, batch_size=batch_size, seed=run.seed)  # may refuse
    sides = {}
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="headscope-"))
        for size in sizes:
            path = f"{folder}/{size}.bin"
            write_tokens(Path(path), size, vocab_size=2**16, seed=run.seed)
            for name in data_side.SIDES:
                process = stack.enter_context(fresh_process(data_side.__name__))
                what = (name, path, length, batch_size, run.seed)
                process.submit(data_side.turn, *what, 0, 1).result()  # loads libraries, not counted
                starts = itertools.count(0, plan.batches)
                sides[f"{name}, {size:,}"] = partial(turn, process, what, starts, plan.batches)
        measured = request.alternate(sides, plan.rounds)
    groups: dict[str, list[Any]] = {}
    for size in sizes:
        pair = {name: measured[f"{name}, {size:,}"] for name in data_side.SIDES}
        groups[f"{size:,} tokens"] = summarize(pair, reference="nanoGPT")
    times, memory = [], [Line("the corpus itself", sizes, [size * 2 / 2**20 for size in sizes])]
    for number, (name, colour) in enumerate(zip(data_side.SIDES, (BLUE, ORANGE), strict=True)):
        found = [rows[number]["microseconds"] for rows in groups.values()]
        medians = [each["median"] for each in found]
        times.append(Line(name, sizes, medians, colour, "so"[number], ranges=found))
        largest = [rows[number]["memory_mib"]["max"] for rows in groups.values()]
        memory.append(Line(name, sizes, largest, colour, "so"[number]))
    batch = f"a training batch of {batch_size} x {length} tokens"
    how = f"medians of {plan.rounds} rounds of {plan.batches:,} batches"
    return Result(
        groups,
        ["microseconds", "first_batch_ms", "memory_mib"],
        f"microseconds to make {batch}, {how}. memory: of the process, without file pages. "
        "ratio: to nanoGPT.",
        f"Making {batch}\n{how}; vertical bars: min to max",
        [
            Lines("microseconds per batch (lower is faster)", "tokens in the corpus", times, 10),
            Lines("memory of the process, MiB", "tokens in the corpus", memory, 10),
        ],
        panel_columns=2,
    )


def turn(process: Any, what: tuple[Any, ...], starts: Iterator[int], count: int) -> Figures:
    return process.submit(data_side.turn, *what, next(starts), count).result()


def write_tokens(path: Path, size: int, *, vocab_size: int, seed: int) -> None:
    """Write uniformly random tokens, ten million at a time."""
    random, dtype = np.random.default_rng(seed), token_dtype(vocab_size)
    with path.open("wb") as file:
        for first in range(0, size, 10**7):
            random.integers(vocab_size, size=min(10**7, size - first), dtype=dtype).tofile(file)
