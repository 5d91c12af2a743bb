"""Writes directly to TensorBoard's event file, for cases in which Lightning's loggers lack a
function or are slow.

The functions import the package tensorboard, because training without a logger does not need it.
"""

import io
import math
import os
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.pytorch import Trainer
from PIL import Image

from headscope.errors import UserError
from headscope.files import FULL
from headscope.training.run_folder import EVENT_FILE_SUFFIX, event_files, is_run

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


def tensorboard_writers(trainer: Trainer) -> "list[SummaryWriter]":
    """The TensorBoard writers of a run, or an empty list if another process logs this run."""
    if not trainer.is_global_zero or not trainer.loggers:
        return []
    from torch.utils.tensorboard import SummaryWriter

    experiments = (getattr(logger, "experiment", None) for logger in trainer.loggers)
    return [writer for writer in experiments if isinstance(writer, SummaryWriter)]


def flush_to_disk(writer: "SummaryWriter") -> None:
    """Writes everything that was logged to the disk, so that a power failure cannot lose it."""
    writer.flush()
    for file in event_files(Path(writer.log_dir)):
        with file.open("rb") as opened:
            os.fsync(opened.fileno())


def steps_not_shown(
    logs: Path, last: int, *, log_every: int, val_every: int, last_validation: int
) -> list[str]:
    """The ranges of steps up to `last`, such as "6 to 27", of which TensorBoard cannot read
    everything from the event files in `logs`: it stops reading a file at a damaged record.
    `log_every` and `val_every` are the steps between two logged losses."""
    # Each start of the run has a file. Its first step hides later steps of the files before.
    sessions: list[tuple[int, int, set[int]]] = [(0, 0, set())]
    validated: set[int] = set()
    for file in event_files(logs):
        start, newest, trained = None, 0, set()
        for event in _readable_events(file):
            if event.HasField("session_log"):
                start = event.step
            tags = {value.tag for value in event.summary.value}
            trained |= {event.step} if "train/loss" in tags else set()
            validated |= {event.step} if "val/loss" in tags else set()
            newest = max(newest, event.step)
        if start is not None:
            sessions.append((start, newest, trained))
    ranges: list[str] = []
    for start, newest, trained in reversed(sessions):
        # trainer.log_every_steps may have changed when the run was resumed.
        every = math.gcd(*(trained - {1})) or log_every
        complete = (
            (1 in trained or not start <= 1 <= last)
            and trained.issuperset(_multiples(every, start, last))
            and validated.issuperset(_multiples(val_every, start, min(last, last_validation)))
        )
        if not complete:
            first = max(start, 1, min(newest + 1, last))
            ranges.insert(0, f"{first:,} to {last:,}" if first < last else f"{last:,}")
        last = min(last, start - 1)
    return ranges


def _multiples(every: int, first: int, last: int) -> range:
    return range(-(-max(first, 1) // every) * every, last + 1, every)


def _readable_events(file: Path) -> Iterator[Any]:
    """The events of a file up to the first damaged record, as TensorBoard reads them."""
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    with suppress(Exception):  # a malicious record: TensorBoard has no error type of its own for it
        yield from LegacyEventFileLoader(str(file)).Load()


@contextmanager
def report_lost_log(folder: Path) -> Iterator[None]:
    """Inside the `with` block, raises UserError if TensorBoard cannot write to `folder`, a run
    folder, because the disk is full or the folder was deleted.

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
        file = os.fsdecode(error.filename or "")
        if file.endswith(EVENT_FILE_SUFFIX) and isinstance(error, FileNotFoundError):
            advice = f"continue with resume={folder}" if is_run(folder) else "start the run again"
            raise UserError(
                f"{file} was deleted while the run was writing to it: {advice}"
            ) from error
        if file or error.errno not in FULL:
            raise
        raise UserError(
            f"{folder}: the TensorBoard log could not be written: {error.strerror}; "
            f"{shutil.disk_usage(folder).free:,} bytes are free there"
        ) from error
    finally:
        threading.excepthook = previous_hook


def add_scalars(writer: "SummaryWriter", values: Mapping[str, float], step: int) -> None:
    """Logs all `values`, whose keys are the tags, in one record. This is ten times as fast as one
    record per value."""
    from tensorboard.compat.proto.summary_pb2 import Summary

    numbers = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
    _write(writer, Summary(value=numbers), step)


def add_image(
    writer: "SummaryWriter", tag: str, image: Image.Image, step: int, *, description: str
) -> None:
    """Logs an image in its own pixel format. `SummaryWriter.add_image` would convert it to RGB.
    TensorBoard shows the description next to the tag."""
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata

    png = io.BytesIO()
    image.save(png, format="PNG", compress_level=3)  # level 6 takes three times as long
    encoded = Summary.Image(
        height=image.height,
        width=image.width,
        colorspace=3,
        encoded_image_string=png.getvalue(),
    )
    metadata = SummaryMetadata(
        plugin_data=SummaryMetadata.PluginData(plugin_name="images"),
        summary_description=description,
    )
    _write(writer, Summary(value=[Summary.Value(tag=tag, image=encoded, metadata=metadata)]), step)


def add_snapshot(writer: "SummaryWriter", tag: str, parts: Sequence[bytes], step: int) -> None:
    """Logs the parts of a snapshot for TensorBoard's tab Attention. `tag` names the text."""
    from headscope.tensorboard.snapshot_events import snapshot_summary

    _write(writer, snapshot_summary(tag, parts), step)


def _write(writer: "SummaryWriter", summary: Any, step: int) -> None:
    file_writer: Any = writer.file_writer  # typed as None, but it is None only after closing
    file_writer.add_summary(summary, step)
