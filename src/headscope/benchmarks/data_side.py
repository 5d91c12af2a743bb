"""One side of suite=data, for a process of its own. Imports little: imports count as memory."""

import math
import re
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from headscope.data.batches import Batch, TrainingBatches

Side = Callable[[str, int, int, int, int], Iterator[Batch]]
"""Takes the path of uint16 tokens, block size, batch size, seed, and the first batch's number."""


def ours(path: str, length: int, batch_size: int, seed: int, start: int) -> Iterator[Batch]:
    """As a run makes them on a CPU."""
    tokens = np.memmap(path, dtype=np.uint16, mode="r")
    return iter(
        TrainingBatches(tokens, block_size=length, batch_size=batch_size, seed=seed, start=start)
    )


def nanogpt(path: str, length: int, batch_size: int, seed: int, start: int) -> Iterator[Batch]:
    """As `get_batch` of nanoGPT's train.py: it opens the file for every batch, and copies each
    sequence separately from a random place."""
    generator = torch.Generator().manual_seed(seed + start)
    while True:
        data = np.memmap(path, dtype=np.uint16, mode="r")
        starts = torch.randint(len(data) - length, (batch_size,), generator=generator)
        inputs = [torch.from_numpy(data[i : i + length].astype(np.int64)) for i in starts]
        targets = [torch.from_numpy(data[i + 1 : i + 1 + length].astype(np.int64)) for i in starts]
        yield torch.stack(inputs), torch.stack(targets)


SIDES: dict[str, Side] = {"nanoGPT": nanogpt, "headscope": ours}


def turn(
    name: str, path: str, length: int, batch_size: int, seed: int, start: int, count: int
) -> dict[str, float]:
    """Make `count` batches after the first one."""
    started = time.perf_counter()
    batches = SIDES[name](path, length, batch_size, seed, start)
    next(batches)
    first = time.perf_counter()
    for _ in islice(batches, count):
        pass
    return {
        "microseconds": 1e6 * (time.perf_counter() - first) / count,
        "first_batch_ms": 1e3 * (first - started),
        "memory_mib": process_mib("RssAnon"),
    }


def process_mib(field: str) -> float:
    """A field of /proc/self/status (man 5 proc) in MiB: VmRSS is resident memory, VmHWM its peak,
    RssAnon the part that is no page of a file. NaN on systems other than Linux."""
    status = Path("/proc/self/status")
    lines = status.read_text(encoding="utf-8") if status.exists() else ""
    found = re.search(rf"^{field}:\s+(\d+) kB", lines, re.M)
    return int(found[1]) / 2**10 if found else math.nan
