"""What training sets for its whole process."""

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h


def prepare_process() -> None:
    """Let glibc keep up to 256 MiB of freed memory, in this process from now on.

    By itself it gives large blocks back to the system and fetches them anew: a thousand page faults
    a step on a CPU (docs/performance.md). Where there is no glibc, nothing happens.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, 32 << 20)  # the most that is allowed
        mallopt(M_TRIM_THRESHOLD, 256 << 20)
