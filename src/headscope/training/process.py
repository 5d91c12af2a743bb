"""Settings for the whole process of a training run: its memory, and the messages of libraries."""

import ctypes
import logging
import sys
import warnings

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


def silence_libraries() -> None:
    """Hides messages of Lightning that do not help the user."""
    # Hide messages about the hardware, the processes, the end of training, and other products.
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings(
        # Lightning 2.6 itself causes this warning with torch 2.13. It is harmless.
        "ignore",
        message="`isinstance\\(treespec, LeafSpec\\)` is deprecated",
    )
    # torch 2.13 has a new name for this argument, which older versions do not know.
    warnings.filterwarnings("ignore", message="`broadcast_buffers` is deprecated")
    # Lightning's advice to use srun is also shown on machines where one process is what is wanted.
    warnings.filterwarnings("ignore", message="The `srun` command is available")
    # `LanguageModel` sums the validation losses of all processes itself.
    warnings.filterwarnings("ignore", message="It is recommended to use `self.log\\(")
    # Hide the advice to use more workers. A single process already produces batches faster than any
    # GPU trains on them.
    warnings.filterwarnings("ignore", message="The 'train_dataloader' does not have many workers")
