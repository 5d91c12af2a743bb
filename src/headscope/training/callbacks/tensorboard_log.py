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
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.pytorch import Trainer
from PIL import Image

from headscope.errors import UserError
from headscope.files import FULL
from headscope.training.run_folder import EVENT_FILE_SUFFIX, event_files

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

    from headscope.training.resume import ResumeCheckpoint


def tensorboard_writers(trainer: Trainer) -> "list[SummaryWriter]":
    """The TensorBoard writers of a run, or an empty list if another process logs this run."""
    if not trainer.is_global_zero or not trainer.loggers:
        return []
    from torch.utils.tensorboard import SummaryWriter

    experiments = (getattr(logger, "experiment", None) for logger in trainer.loggers)
    return [writer for writer in experiments if isinstance(writer, SummaryWriter)]


def lost_steps(logs: Path, resume: "ResumeCheckpoint") -> str | None:
    """Says for which steps up to `resume` TensorBoard cannot read everything, or returns None. It
    reads each event file in `logs` up to the first damaged record."""
    last, config = resume.step, resume.stored.config
    settings, ranges = config.trainer, list[tuple[int, int]]()
    saver = resume.stored.data["training"]["callbacks"].get("CheckpointSaver", {})
    validated = last % settings.val_every_steps == 0 or last == settings.max_steps
    missing = validated and not saver.get("validation_due")  # the loss of the last validation
    newest, every = 0, 0
    for step, starts, tags in chain(_readable_events(logs), [(last + 1, True, set[str]())]):
        if starts:  # here the run was resumed: TensorBoard hides earlier events from this step on
            if step > last or not every:  # an earlier process may have logged other steps
                every = settings.log_every_steps
            if (step - 1) // every > newest // every or newest < 1 < step:
                ranges.append((newest + 1, step - 1))
            ranges = [(first, min(end, step - 1)) for first, end in ranges if first < step]
            newest, every = max(0, step - 1), 0
        elif "train/loss" in tags:
            newest, every = step, math.gcd(every, step if step > 1 else 0)
        missing &= step != last or "val/loss" not in tags
    if missing and (not ranges or ranges[-1][1] < last):
        ranges.append((last, last))
    steps = " and ".join(f"{first:,} to {end:,}" for first, end in ranges)
    line = f"TensorBoard will not show everything of steps {steps}: event files in {logs} are "
    return f"{line}damaged or missing" if ranges and config.logger else None


def _readable_events(logs: Path) -> Iterator[tuple[int, bool, set[str]]]:
    """The step of each event, whether it is the start of a process, and its losses."""
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    for file in event_files(logs):
        with suppress(Exception):  # of a malicious record
            for event in LegacyEventFileLoader(str(file)).Load():
                tags = {value.tag for value in event.summary.value} & {"train/loss", "val/loss"}
                yield event.step, event.HasField("session_log"), tags


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
        if not file.endswith(EVENT_FILE_SUFFIX) and (file or error.errno not in FULL):
            raise
        advice = "start the run again, and do not delete or move its folder meanwhile"
        if error.errno in FULL:
            advice = f"{shutil.disk_usage(folder).free:,} bytes are free there"
        raise UserError(
            f"{folder}: the TensorBoard log could not be written: {error.strerror}; {advice}"
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
