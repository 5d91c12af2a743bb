"""What this machine has: cores and memory."""

import ctypes
import math
import os
import re
import sys
import time
from contextlib import suppress
from pathlib import Path


def process_cores() -> int:
    """The number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def core_seconds() -> tuple[float, float, float] | None:
    """Three numbers in seconds: the time now, the idle time of all cores of this process, and the
    time that this process has used them. None if the system does not report it."""
    try:
        text = Path("/proc/stat").read_text()
    except OSError:  # not Linux
        return None
    lines = re.findall(r"^cpu(\d+) \d+ \d+ \d+ (\d+) (\d+)", text, re.M)
    own, ticks = os.sched_getaffinity(0), os.sysconf("SC_CLK_TCK")
    idle = sum(int(idle) + int(disk) for core, idle, disk in lines if int(core) in own)
    return time.monotonic(), idle / ticks, sum(os.times()[:2])


def cores_of_others(since: tuple[float, float, float] | None) -> float:
    """The mean number of our cores that other programs used since `core_seconds` gave `since`."""
    now = core_seconds()
    if since is None or now is None:
        return 0.0
    seconds, idle, own = (after - before for after, before in zip(now, since, strict=True))
    return max(0.0, process_cores() - (idle + own) / max(seconds, 1e-3))


def machine_memory() -> float:
    """The physical memory of this machine in bytes, or infinity if it is not reported."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return math.inf


def available_memory() -> float:
    """The memory in bytes that programs can still get, or all of it where it is not reported."""
    with suppress(OSError):  # not Linux
        found = re.search(r"^MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text(), re.M)
        if found:
            return 1024 * int(found[1])
    return machine_memory()


def keep_freed_memory() -> None:
    """Lets glibc keep freed memory in this process: all blocks below 32 MiB, and up to 256 MiB in a
    row. By default, it returns large blocks to the operating system and requests them again, which
    costs about a thousand page faults per training step on a CPU (docs/performance.md)."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mmap_threshold, trim_threshold = -3, -1  # malloc.h
        mallopt(mmap_threshold, 32 << 20)  # the largest value allowed
        mallopt(trim_threshold, 256 << 20)
