"""Memory settings for the whole process of a training run."""

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h


def prepare_process(*, keep_freed: bool = True) -> None:
    """Lets glibc keep freed memory in this process. Does nothing without glibc.

    By default, glibc returns large blocks of freed memory to the operating system and requests new
    blocks later. This costs about a thousand page faults per training step on a CPU
    (docs/performance.md). With `keep_freed`, glibc keeps all blocks below 32 MiB and up to 256 MiB
    in a row. Without `keep_freed`, it returns every block of at least 128 KiB at once, so that a
    process has little more memory than its tensors need.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mmap_threshold = 32 << 20 if keep_freed else 128 << 10  # 32 MiB: the largest value allowed
        mallopt(M_MMAP_THRESHOLD, mmap_threshold)
        mallopt(M_TRIM_THRESHOLD, 8 * mmap_threshold)
