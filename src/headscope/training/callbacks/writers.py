"""TensorBoard's own writers, for what Lightning's loggers do not know or are slow at."""

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
    """The TensorBoard writers of this process; none where another process writes."""
    if not trainer.is_global_zero:
        return []
    experiments = (getattr(logger, "experiment", None) for logger in trainer.loggers)
    return [writer for writer in experiments if isinstance(writer, SummaryWriter)]


@contextmanager
def full_disk_told(folder: Path) -> Iterator[None]:
    """Raises UserError when the disk is full of what TensorBoard's writers write to `folder`.

    They write in a thread of their own, which prints a traceback when it fails; the next call of
    the writer raises the same error here, without the file's name.
    """
    before = threading.excepthook

    def hook(failed: threading.ExceptHookArgs) -> None:
        if not type(failed.thread).__module__.startswith("tensorboard."):
            before(failed)

    threading.excepthook = hook
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno not in FULL:
            raise
        raise UserError(
            f"{folder}: what TensorBoard shows could not be written: {error.strerror}; "
            f"{shutil.disk_usage(folder).free:,} bytes are free there"
        ) from error
    finally:
        threading.excepthook = before


def add_scalars(writer: SummaryWriter, values: Mapping[str, float], step: int) -> None:
    """Many numbers by their tags as one record, which takes a tenth of the time of one by one."""
    numbers = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
    _write(writer, Summary(value=numbers), step)


def add_picture(writer: SummaryWriter, tag: str, picture: Image.Image, step: int) -> None:
    """A picture as it is; `add_image` would make three bytes of each of its pixels."""
    packed = io.BytesIO()
    picture.save(packed, format="PNG", compress_level=1)
    image = Summary.Image(
        height=picture.height,
        width=picture.width,
        colorspace=3,
        encoded_image_string=packed.getvalue(),
    )
    _write(writer, Summary(value=[Summary.Value(tag=tag, image=image)]), step)


def _write(writer: SummaryWriter, summary: Summary, step: int) -> None:
    file_writer: Any = writer.file_writer  # typed as None, which it is only when closed
    file_writer.add_summary(summary, step)
