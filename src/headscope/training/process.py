"""Memory settings for the whole process of a training run."""

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h


def prepare_process() -> None:
    """Lets glibc keep up to 256 MiB of freed memory in this process. Does nothing without glibc.

    By default, glibc returns large blocks of freed memory to the operating system and requests new
    blocks later. This costs about a thousand page faults per training step on a CPU
    (docs/performance.md).
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, 32 << 20)  # the largest value that glibc accepts
        mallopt(M_TRIM_THRESHOLD, 256 << 20)
