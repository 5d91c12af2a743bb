"""One side of suite=data, in a process that does nothing else, so that its memory is its own.

`python -m headscope.benchmarks.data_side TASK` takes a `Task` as JSON, and answers with a line of
JSON at once, and then with one for every line it reads, which is the number of a round.

Shapes: B batch, T block_size.
"""

import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from headscope.data.batches import Batch, TrainingBatches

DTYPE = np.uint16
OURS, PEER = "headscope", "nanoGPT"


@dataclass(frozen=True)
class Task:
    """Which side makes `batches` batches a round, out of which file of tokens."""

    side: str
    path: str
    block_size: int
    batch_size: int
    seed: int
    batches: int


def ours(task: Task, start: int) -> TrainingBatches:
    """As a run makes them on a CPU, from batch `start` on."""
    return TrainingBatches(
        np.memmap(task.path, dtype=DTYPE, mode="r"),
        block_size=task.block_size,
        batch_size=task.batch_size,
        seed=task.seed,
        start=start,
    )


def nanogpt(task: Task, start: int) -> Iterator[Batch]:
    """As `get_batch` in nanoGPT's train.py makes them: the file is opened anew for every batch, and
    each sequence is cut out, at random and with replacement, by itself."""
    generator = torch.Generator().manual_seed(task.seed + start)
    length = task.block_size
    while True:
        data = np.memmap(task.path, dtype=DTYPE, mode="r")
        starts = torch.randint(len(data) - length, (task.batch_size,), generator=generator)
        yield (
            torch.stack([torch.from_numpy(data[i : i + length].astype(np.int64)) for i in starts]),
            torch.stack(
                [torch.from_numpy(data[i + 1 : i + 1 + length].astype(np.int64)) for i in starts]
            ),
        )


SIDES: dict[str, Callable[[Task, int], Iterator[Batch]]] = {
    OURS: lambda task, start: iter(ours(task, start)),
    PEER: nanogpt,
}


def measured(task: Task, number: int) -> dict[str, float | None]:
    """A round: the milliseconds from opening the file to the first batch, the microseconds of each
    that follows, and the memory while they are made."""
    started = time.perf_counter()
    batches = SIDES[task.side](task, number * task.batches)
    next(batches)
    first = time.perf_counter()
    for _ in islice(batches, task.batches):
        pass
    ended = time.perf_counter()
    return {
        "first_batch_milliseconds": 1e3 * (first - started),
        "microseconds": 1e6 * (ended - first) / task.batches,
        "memory_mib": memory_mib(),
    }


def memory_mib() -> float | None:
    """What this process holds that is no page of a file, which the system may drop at any time;
    None where the system does not say (Linux does)."""
    status = Path("/proc/self/status")
    found = (
        re.search(r"^RssAnon:\s+(\d+) kB", status.read_text(), re.M) if status.exists() else None
    )
    return round(int(found[1]) / 2**10, 2) if found else None


def main() -> None:
    task = Task(**json.loads(sys.argv[1]))
    print(json.dumps({"memory_mib": memory_mib()}), flush=True)
    next(SIDES[task.side](task, 0))  # what is loaded at the first call is not timed
    for line in sys.stdin:
        print(json.dumps(measured(task, int(line))), flush=True)


if __name__ == "__main__":
    main()
