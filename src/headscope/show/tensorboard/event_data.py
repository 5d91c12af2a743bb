"""Reads snapshots and losses from TensorBoard's data provider.

TensorBoard has two loaders of event files, and only the data provider works with both. An event
file may come from a stranger, so the provider may raise any exception. Here it becomes an
`HTTPException`.
"""

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

from tensorboard import plugin_util
from tensorboard.data.provider import BlobSequenceDatum, DataProvider, RunTagFilter
from werkzeug.exceptions import HTTPException, NotFound, UnprocessableEntity

from headscope.analysis.headers import MAX_STEPS, PLUGIN
from headscope.errors import first_line

MAX_PARTS = 512
"""Maximum number of parts of a snapshot. A damaged event file may claim any number, and TensorBoard
would create a key for each of them."""
READ_TOGETHER = 32
"""Number of headers that are read at the same time. For each header, the fast loader may wait up to
45 ms, so it is faster to read many at once."""
LOSSES = ("train/loss", "val/loss")
LOSS_POINTS = 1000


class EventData:
    """What TensorBoard has read from event files. Methods raise HTTPException if it cannot be
    read. Its description is for the user."""

    def __init__(self, provider: DataProvider, environ: dict[str, Any]) -> None:
        self.provider = provider
        self.context = plugin_util.context(environ)
        experiment = plugin_util.experiment_id(environ)
        self.where: dict[str, Any] = {"ctx": self.context, "experiment_id": experiment}

    def texts(self) -> dict[str, list[str]]:
        """The names of the texts of each run with snapshots. The newest run is first."""
        with _readable():
            runs = self.provider.list_runs(**self.where)
            series = self.provider.list_blob_sequences(**self.where, plugin_name=PLUGIN)
        started = {run.run_name: run.start_time or 0 for run in runs}
        newest_first = sorted(series, key=lambda run: (-started.get(run, 0), run))
        return {run: sorted(series[run]) for run in newest_first}

    def snapshots(self, run: str, text: str) -> list[BlobSequenceDatum]:
        """The snapshots of a run in the order of their steps. They name their parts."""
        only = RunTagFilter(runs=[run], tags=[text])
        which = {**self.where, "plugin_name": PLUGIN, "run_tag_filter": only}
        with _readable():
            series = self.provider.list_blob_sequences(**which)
        if text not in series.get(run, ()):
            raise NotFound(f"run {run} has no attention data of a text {text}")
        if (series[run][text].max_length or 0) > MAX_PARTS:
            raise UnprocessableEntity(f"run {run}: a snapshot has more than {MAX_PARTS} parts")
        with _readable():
            runs = self.provider.read_blob_sequences(**which, downsample=MAX_STEPS)
        return runs.get(run, {}).get(text, [])

    def headers(self, snapshots: Sequence[BlobSequenceDatum]) -> Iterator[bytes]:
        """The first part of each snapshot. It is empty if it cannot be read."""
        with ThreadPoolExecutor(READ_TOGETHER) as pool:
            for start in range(0, len(snapshots), READ_TOGETHER):
                yield from pool.map(self._header, snapshots[start : start + READ_TOGETHER])

    def _header(self, snapshot: BlobSequenceDatum) -> bytes:
        with suppress(HTTPException, IndexError):
            return self.part(snapshot.values[0].blob_key)
        return b""

    def part(self, blob_key: str) -> bytes:
        """The bytes of a part of a snapshot."""
        with _readable():
            part = self.provider.read_blob(self.context, blob_key=blob_key)
        if not isinstance(part, bytes):
            raise UnprocessableEntity("this part of a snapshot does not consist of bytes")
        return part

    def loss(self, run: str) -> dict[str, Any]:
        """The curve of the training loss of a run, or of the validation loss if the former cannot
        be read. Without both, the lists are empty. A loss that is not finite is None."""
        for name in LOSSES:
            only = RunTagFilter(runs=[run], tags=[name])
            which = {**self.where, "plugin_name": "scalars", "run_tag_filter": only}
            with suppress(HTTPException), _readable():
                runs = self.provider.read_scalars(**which, downsample=LOSS_POINTS)
                points = runs[run][name]
                values = [point.value if math.isfinite(point.value) else None for point in points]
                return {"name": name, "steps": [point.step for point in points], "values": values}
        return {"name": LOSSES[0], "steps": [], "values": []}


@contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        problem = f"TensorBoard cannot read the data: {first_line(error)}"
        raise UnprocessableEntity(problem) from error
