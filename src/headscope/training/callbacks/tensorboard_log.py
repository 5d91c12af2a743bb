"""Writes directly to TensorBoard, for cases in which Lightning's loggers lack a function or are
slow."""

import io
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from PIL import Image
from tensorboard.compat.proto.summary_pb2 import Summary
from torch.utils.tensorboard import SummaryWriter

from headscope.errors import UserError
from headscope.files import FULL


def tensorboard_writers(trainer: Trainer) -> list[SummaryWriter]:
    """The TensorBoard writers of a run, or an empty list if another process logs this run."""
    if not trainer.is_global_zero:
        return []
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


def add_scalars(writer: SummaryWriter, values: Mapping[str, float], step: int) -> None:
    """Logs all `values`, whose keys are the tags, in one record. This is ten times as fast as one
    record per value."""
    numbers = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
    _write(writer, Summary(value=numbers), step)


def add_picture(writer: SummaryWriter, tag: str, picture: Image.Image, step: int) -> None:
    """Logs an image in its own pixel format. `SummaryWriter.add_image` would convert it to RGB."""
    png = io.BytesIO()
    picture.save(png, format="PNG", compress_level=1)
    image = Summary.Image(
        height=picture.height,
        width=picture.width,
        colorspace=3,
        encoded_image_string=png.getvalue(),
    )
    _write(writer, Summary(value=[Summary.Value(tag=tag, image=image)]), step)


def _write(writer: SummaryWriter, summary: Summary, step: int) -> None:
    file_writer: Any = writer.file_writer  # typed as None, but it is None only after closing
    file_writer.add_summary(summary, step)
