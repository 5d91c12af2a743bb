"""What a batch costs, of small corpora and large: ours, and as nanoGPT makes them."""

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from headscope.benchmarks import data_side
from headscope.benchmarks.data_side import DTYPE, OURS, PEER, SIDES, Task, ours
from headscope.benchmarks.timing import in_turn, machine, ratios, spread
from headscope.data.batches import TrainingBatches
from headscope.errors import UserError

CHUNK = 10_000_000
"""Tokens that are drawn and written at once."""


def compare_batches(
    *,
    tokens: Sequence[int],
    block_size: int,
    batch_size: int,
    batches: int,
    rounds: int,
    seed: int,
    console: Console,
) -> dict[str, Any]:
    """For corpora of so many `tokens`, made of random ones in a temporary folder: microseconds of a
    batch, milliseconds from opening the file to the first batch, and MiB of memory that are no
    pages of the file, before the first batch and after the last.

    Every size and side has a process of its own; they take turns, `batches` batches at a time. The
    files have just been written, so as a rule they are read from memory, not from the disk.

    Raises UserError for sizes that give no batch or find no room on the disk, RuntimeError when a
    batch is not what stands in the file.
    """
    sizes = sorted(set(tokens))
    if not sizes or sizes[0] < 1:
        raise UserError(f"suite.tokens={list(tokens)} must hold sizes of at least 1")
    # Of as many tokens as the smallest has, which take no memory: raises before anything is made.
    nothing = np.broadcast_to(DTYPE(0), sizes[0])
    TrainingBatches(nothing, block_size=block_size, batch_size=batch_size, seed=seed)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headscope-")))
        require_room(folder, sizes)
        sides: dict[tuple[int, str], Side] = {}
        for size in sizes:
            console.print(f"making {size:,} tokens")
            path = folder / f"{size}.bin"
            write_tokens(path, size, seed=seed)
            for name in SIDES:
                task = Task(name, str(path), block_size, batch_size, seed, batches)
                require_plain_slices(task)
                sides[size, name] = stack.enter_context(started(task))
        microseconds = in_turn(
            {f"{name} of {size:,}": side for (size, name), side in sides.items()},
            rounds=rounds,
            tell=console.print,
            unit="us",
        )
    return {
        **machine(torch.device("cpu")),
        "block_size": block_size,
        "batch_size": batch_size,
        "batches": batches,
        "rounds": rounds,
        "sizes": [
            {
                "tokens": size,
                "sides": {name: sides[size, name].figures() for name in SIDES},
                "ratio": ratios(*(microseconds[f"{name} of {size:,}"] for name in (OURS, PEER))),
            }
            for size in sizes
        ],
    }


class Side:
    """A process of `data_side` and what it has measured; a call is a round."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.memory_before = self._answer()["memory_mib"]
        self.rounds: list[dict[str, Any]] = []

    def __call__(self) -> float:
        """Microseconds of a batch."""
        assert self.process.stdin is not None
        print(len(self.rounds), file=self.process.stdin, flush=True)
        self.rounds.append(self._answer())
        return self.rounds[-1]["microseconds"]

    def figures(self) -> dict[str, Any]:
        """Of all rounds."""
        return {
            **{
                name: spread(found[name] for found in self.rounds)
                for name in ("microseconds", "first_batch_milliseconds")
            },
            "memory_mib": {"before": self.memory_before, "after": self.rounds[-1]["memory_mib"]},
        }

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("a process that made batches ended; what it said stands above")
        return json.loads(line)


@contextmanager
def started(task: Task) -> Iterator[Side]:
    """The process of a task, until the end of the context."""
    process = subprocess.Popen(
        [sys.executable, "-m", data_side.__name__, json.dumps(asdict(task))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is for this process, which then ends the others
    )
    with process:
        try:
            yield Side(process)
        finally:
            process.kill()


def write_tokens(path: Path, size: int, *, seed: int) -> None:
    """So many random tokens, every value as likely."""
    random = np.random.default_rng(seed)
    with path.open("wb") as file:
        for first in range(0, size, CHUNK):
            random.integers(
                np.iinfo(DTYPE).max, size=min(CHUNK, size - first), dtype=DTYPE, endpoint=True
            ).tofile(file)


def require_room(folder: Path, sizes: Sequence[int]) -> None:
    """Raises UserError when the disk cannot hold corpora of these sizes."""
    needed = sum(sizes) * np.dtype(DTYPE).itemsize
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise UserError(
            f"suite.tokens={list(sizes)} need {needed / 2**30:,.1f} GiB in {folder.parent}, which "
            f"has {free / 2**30:,.1f} GiB free: take fewer, or set TMPDIR to a larger disk"
        )


def require_plain_slices(task: Task) -> None:
    """Raises RuntimeError when a batch of ours, at the beginning, the end or the turn of an epoch,
    is not what stands in the file where it starts."""
    epoch = ours(task, 0).batches_per_epoch
    for start in (0, epoch - 1, epoch):
        batches = ours(task, start)
        inputs, targets = (half.numpy() for half in next(iter(batches)))
        for row, first in enumerate(next(batches.starts())):
            there = np.fromfile(
                task.path,
                dtype=DTYPE,
                count=task.block_size + 1,
                offset=first * np.dtype(DTYPE).itemsize,
            )
            same = np.array_equal(inputs[row], there[:-1]) and np.array_equal(
                targets[row], there[1:]
            )
            if not same:
                raise RuntimeError(f"sequence {row} of batch {start} is not what is at {first}")


def report(figures: dict[str, Any], console: Console) -> None:
    """A row for each size and side."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("tokens", justify="right", no_wrap=True)
    table.add_column("side", no_wrap=True)
    for name in ("us", "least", "most", "first ms", "before", "after"):
        table.add_column(name, justify="right", no_wrap=True)
    for size in figures["sizes"]:
        for name, side in size["sides"].items():
            times, memory = side["microseconds"], side["memory_mib"]
            table.add_row(
                f"{size['tokens']:,}" if name == OURS else "",
                name,
                *(f"{times[key]:,.1f}" for key in ("median", "min", "max")),
                f"{side['first_batch_milliseconds']['median']:,.2f}",
                *("-" if mib is None else f"{mib:,.1f}" for mib in memory.values()),
            )
    console.print(table)
    console.print(
        f"\nus: of a batch of {figures['batch_size']} x {figures['block_size']} tokens; median, "
        f"least and most of {figures['rounds']} rounds of {figures['batches']:,} batches. first "
        "ms: from opening the file to the first batch, median. before, after: MiB of memory of a "
        "process before its first batch and after its last, without pages of the file.",
        highlight=False,
        soft_wrap=True,
    )
