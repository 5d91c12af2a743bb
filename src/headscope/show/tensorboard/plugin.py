"""The plugin: answers the requests of the tab Attention with what TensorBoard has read.

TensorBoard has two loaders of event files, and only its data provider works with both. An event
file may come from a stranger, so the provider may raise any exception. Here it becomes an
`HTTPException`. A request that cannot be answered, as for damaged data, gets {"error": one line}.
"""

import json
import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tensorboard import plugin_util
from tensorboard.backend import http_util
from tensorboard.data.provider import BlobSequenceDatum, DataProvider, RunTagFilter
from tensorboard.plugins.base_plugin import FrontendMetadata, TBContext, TBPlugin
from werkzeug import Request, Response
from werkzeug.exceptions import BadRequest, HTTPException, NotFound, UnprocessableEntity

from headscope.analysis.headers import MAX_STEPS, PLUGIN, SHAPE, HeaderError, history, read_header
from headscope.errors import first_line
from headscope.show.viewer.files import CONTENT_TYPES, viewer_files
from headscope.terminal import printable

MAX_HEADERS_BYTES = 32 * 2**20
"""Maximum size of all headers of a history together."""
PART_SECONDS = 3600
"""How long the browser may keep a part."""

MAX_PARTS = 512
"""Maximum number of parts of a snapshot. A damaged event file may claim any number, and TensorBoard
would create a key for each of them."""
READ_TOGETHER = 32
"""Number of headers that are read at the same time. For each header, the fast loader may wait up to
45 ms, so it is faster to read many at once."""
LOSSES = ("train/loss", "val/loss")
LOSS_POINTS = 1000

Application = Callable[..., Any]


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


class AttentionPlugin(TBPlugin):
    """The tab Attention: static files of the viewer, and the data that the viewer asks for."""

    plugin_name = PLUGIN

    def __init__(self, context: TBContext) -> None:
        self.provider = context.data_provider

    def is_active(self) -> bool:
        """TensorBoard itself shows the tab as soon as a run has data of this plugin."""
        return False

    def frontend_metadata(self) -> FrontendMetadata:
        return FrontendMetadata(es_module_path="/tab.js", tab_name="Attention")

    def get_plugin_apps(self) -> dict[str, Application]:
        # Read once: if the package is updated, a running TensorBoard does not mix two versions.
        return {
            **{f"/{name}": _static(name, text) for name, text in viewer_files().items()},
            "/runs": self._application(_runs),
            "/history": self._application(_history),
            "/part": self._application(_part),
        }

    def _application(self, answer: Callable[[Request, EventData], Response]) -> Application:
        @Request.application
        def application(request: Request) -> Response:
            try:
                return answer(request, EventData(self.provider, request.environ))
            except HTTPException as error:
                return _json(request, {"error": printable(str(error.description))}, error.code)

        return application


def _static(name: str, text: str) -> Application:
    @Request.application
    def application(request: Request) -> Response:
        return http_util.Respond(request, text, CONTENT_TYPES[Path(name).suffix])

    return application


def _runs(request: Request, data: EventData) -> Response:
    """All runs with snapshots, the newest first. Texts of the same shape can be compared."""
    texts = data.texts()
    with ThreadPoolExecutor(READ_TOGETHER) as pool:
        shapes = {
            run: [pool.submit(_shape, data, run, text) for text in texts[run] if len(texts) > 1]
            for run in texts
        }
    runs = [
        {"name": run, "texts": texts[run], "shapes": [shape.result() for shape in shapes[run]]}
        for run in texts
    ]
    return _json(request, {"runs": runs})


def _shape(data: EventData, run: str, text: str) -> int | None:
    """A number for the model's heads and the tokens in the last snapshot. None if it is damaged."""
    try:
        [last] = data.headers(data.snapshots(run, text)[-1:])
        header = read_header(last)
    except (HTTPException, ValueError):
        return None
    return zlib.crc32(json.dumps([header[name] for name in SHAPE]).encode())


def _history(request: Request, data: EventData) -> Response:
    """The history of one run and one text, without its damaged snapshots."""
    run, text = _parameter(request, "run"), _parameter(request, "text")
    headers, parts, size = [], [], 0
    problem = "no snapshot has all its parts"
    with ThreadPoolExecutor() as pool:  # the fast loader lets every request wait
        loss = pool.submit(data.loss, run)
        snapshots = data.snapshots(run, text)
        for snapshot, header in zip(snapshots, data.headers(snapshots), strict=True):
            try:
                headers.append(read_header(header))
            except HeaderError as error:
                problem = f"step {snapshot.step}: {error}"
                continue
            size += len(header)
            if size > MAX_HEADERS_BYTES:
                limit = f"{MAX_HEADERS_BYTES:,} bytes"
                raise UnprocessableEntity(f"run {run}: the headers have more than {limit}")
            # The browser's cache may have parts of an older run with this name and other times.
            parts.append([f"{part.blob_key}@{snapshot.wall_time}" for part in snapshot.values[1:]])
    combined = history(headers, parts, loss.result()) if headers else {"steps": []}
    if not combined["steps"]:
        raise UnprocessableEntity(f"run {run}, text {text}, {problem}")
    return _json(request, combined)


def _part(request: Request, data: EventData) -> Response:
    """The bytes of the part with a key of the history."""
    blob_key, _, _ = _parameter(request, "key").partition("@")
    part = data.part(blob_key)
    return http_util.Respond(request, part, "application/octet-stream", expires=PART_SECONDS)


def _parameter(request: Request, name: str) -> str:
    if name not in request.args:
        raise BadRequest(f"the parameter `{name}` is missing")
    return request.args[name]


def _json(request: Request, answer: dict[str, Any], status: int | None = 200) -> Response:
    # As text, because `Respond` would copy a dictionary value by value, which takes longer.
    text = json.dumps(answer, allow_nan=False)
    return http_util.Respond(request, text, "application/json", code=status or 500)
