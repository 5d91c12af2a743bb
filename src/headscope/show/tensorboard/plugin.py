"""The plugin: answers the requests of the tab Attention.

A request that cannot be answered, as for damaged data, gets {"error": one line}.
"""

import json
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tensorboard.backend import http_util
from tensorboard.plugins.base_plugin import FrontendMetadata, TBContext, TBPlugin
from werkzeug import Request, Response
from werkzeug.exceptions import BadRequest, HTTPException, UnprocessableEntity

from headscope.analysis.headers import PLUGIN, SHAPE, HeaderError, history, read_header
from headscope.show.tensorboard.event_data import READ_TOGETHER, EventData
from headscope.show.viewer.files import CONTENT_TYPES, viewer_files
from headscope.terminal import printable

MAX_HEADERS_BYTES = 32 * 2**20
"""Maximum size of all headers of a history together."""
PART_SECONDS = 3600
"""How long the browser may keep a part."""

Application = Callable[..., Any]


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
