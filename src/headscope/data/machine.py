"""What this machine has: cores and memory."""

import math
import os
import re
import time
from pathlib import Path


def process_cores() -> int:
    """The number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def core_seconds(root: Path = Path("/")) -> tuple[float, float, float] | None:
    """The time now, for how long the cores of this process have been idle, and for how long this
    process has used them, in seconds. None if the system does not tell it. `root` is the folder
    that contains `proc`."""
    lines = re.findall(r"^cpu(\d+) \d+ \d+ \d+ (\d+) (\d+)", _text(root / "proc/stat"), re.M)
    if not lines:  # not Linux
        return None
    own, ticks = os.sched_getaffinity(0), os.sysconf("SC_CLK_TCK")
    idle = sum(int(idle) + int(disk) for core, idle, disk in lines if int(core) in own)
    return time.monotonic(), idle / ticks, sum(os.times()[:2])


def cores_of_others(since: tuple[float, float, float] | None) -> float:
    """How many cores of this process other programs have used on average since `core_seconds` was
    `since`. 0 if the system does not tell it."""
    now = core_seconds()
    if since is None or now is None:
        return 0.0
    seconds, idle, own = (after - before for after, before in zip(now, since, strict=True))
    return max(0.0, process_cores() - (idle + own) / max(seconds, 1e-3))


def machine_memory() -> float:
    """The physical memory of this machine in bytes, or infinity if the system does not tell it."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return math.inf


def available_memory(root: Path = Path("/")) -> float:
    """The bytes that this process can still use without swapping: the free memory of the machine,
    or what the process's control groups (container, SLURM job) still allow, if that is less. The
    page cache counts as free, because the system can give it back.

    Only Linux provides these numbers. On other systems, the result is the physical memory. `root`
    is the folder that contains `proc` and `sys`.
    """
    limits = [machine_memory()]
    free = re.search(r"^MemAvailable:\s+(\d+) kB", _text(root / "proc/meminfo"), re.M)
    if free:
        limits.append(int(free[1]) << 10)
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top, limit, usage = root / "sys/fs/cgroup", "memory.max", "memory.current"
        elif "memory" in controllers.split(","):  # version 1 of control groups
            top, limit = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
            usage = "memory.usage_in_bytes"
        else:
            continue
        group = top / path.lstrip("/")
        while group.is_relative_to(top):  # the limit of every parent group holds too
            allowed, used = _text(group / limit).strip(), _text(group / usage).strip()
            if allowed.isdecimal() and used.isdecimal():
                cache = re.search(r"^inactive_file (\d+)", _text(group / "memory.stat"), re.M)
                limits.append(int(allowed) - int(used) + (int(cache[1]) if cache else 0))
            group = group.parent
    return max(0, min(limits))


def _text(file: Path) -> str:
    """The text of a small file of the system. Empty if the file cannot be read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
