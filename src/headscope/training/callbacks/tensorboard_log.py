"""Writes directly to TensorBoard's event file, for cases in which Lightning's loggers lack a
function or are slow.

This module needs the package tensorboard, so it is imported only when something is written.
"""

import io
from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from torch.utils.tensorboard import SummaryWriter

from headscope.tensorboard.snapshot_events import snapshot_summary


def add_scalars(writer: SummaryWriter, values: Mapping[str, float], step: int) -> None:
    """Logs all `values`, whose keys are the tags, in one record. This is ten times as fast as one
    record per value."""
    numbers = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
    _write(writer, Summary(value=numbers), step)


def add_image(
    writer: SummaryWriter, tag: str, image: Image.Image, step: int, *, description: str
) -> None:
    """Logs an image in its own pixel format. `SummaryWriter.add_image` would convert it to RGB.
    TensorBoard shows the description next to the tag."""
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


def add_snapshot(writer: SummaryWriter, tag: str, parts: Sequence[bytes], step: int) -> None:
    """Logs the parts of a snapshot for TensorBoard's tab Attention. `tag` names the text."""
    _write(writer, snapshot_summary(tag, parts), step)


def _write(writer: SummaryWriter, summary: Summary, step: int) -> None:
    file_writer: Any = writer.file_writer  # typed as None, but it is None only after closing
    file_writer.add_summary(summary, step)
