"""Writes snapshots (see `headscope.analysis.snapshot`) as events for the tab Attention.

A run logs each snapshot with its own writer. `event_file` makes a complete event file.
"""

import io
import time
from collections.abc import Mapping, Sequence

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import DataClass, Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DataType
from tensorboard.summary.writer.record_writer import RecordWriter

from headscope.analysis.headers import PLUGIN, SNAPSHOTS


def snapshot_summary(tag: str, parts: Sequence[bytes]) -> Summary:
    """The summary of a snapshot with the given parts. `tag` names the text."""
    metadata = SummaryMetadata(
        plugin_data=SummaryMetadata.PluginData(plugin_name=PLUGIN),
        data_class=DataClass.DATA_CLASS_BLOB_SEQUENCE,
    )
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=len(parts))])
    tensor = TensorProto(dtype=DataType.DT_STRING, tensor_shape=shape, string_val=parts)
    return Summary(value=[Summary.Value(tag=tag, metadata=metadata, tensor=tensor)])


def event_file(
    snapshots: Mapping[int, Sequence[bytes]], losses: Mapping[int, float] | None = None
) -> bytes:
    """The content of an event file with the parts of a snapshot, and the validation loss in nats
    per token, for each step."""
    now = time.time()
    events = [Event(wall_time=now, file_version="brain.Event:2")]  # TensorBoard expects this first
    events += [
        Event(wall_time=now, step=step, summary=snapshot_summary(SNAPSHOTS, parts))
        for step, parts in snapshots.items()
    ]
    for step, loss in (losses or {}).items():
        scalar = Summary(value=[Summary.Value(tag="val/loss", simple_value=loss)])
        events.append(Event(wall_time=now, step=step, summary=scalar))
    content = io.BytesIO()
    records = RecordWriter(content)
    for event in events:
        records.write(event.SerializeToString())
    return content.getvalue()
