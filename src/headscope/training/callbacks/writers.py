"""Finds the TensorBoard writers of a run, and reports a full disk. Without a logger, this does not
need the package tensorboard."""

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from lightning.pytorch import Trainer

from headscope.errors import UserError
from headscope.files import FULL

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


def tensorboard_writers(trainer: Trainer) -> "list[SummaryWriter]":
    """The TensorBoard writers of a run, or an empty list if another process logs this run."""
    if not trainer.is_global_zero or not trainer.loggers:
        return []
    from torch.utils.tensorboard import SummaryWriter

    experiments = (getattr(logger, "experiment", None) for logger in trainer.loggers)
    return [writer for writer in experiments if isinstance(writer, SummaryWriter)]


@contextmanager
def report_full_disk(folder: Path) -> Iterator[None]:
    """Inside the `with` block, raises UserError if TensorBoard cannot write to `folder` because the
    disk is full.

    TensorBoard writes in a separate thread. When that thread fails, the next call of the writer
    raises the same error in this thread, without the file's name. This context manager also hides
    the traceback that the failed thread would print.
    """
    previous_hook = threading.excepthook

    def hook(failed: threading.ExceptHookArgs) -> None:
        if not type(failed.thread).__module__.startswith("tensorboard."):
            previous_hook(failed)

    threading.excepthook = hook
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno not in FULL:
            raise
        raise UserError(
            f"{folder}: the TensorBoard log could not be written: {error.strerror}; "
            f"{shutil.disk_usage(folder).free:,} bytes are free there"
        ) from error
    finally:
        threading.excepthook = previous_hook
