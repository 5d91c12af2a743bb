"""What the server of the page answers: static files, and the protocol as JSON over HTTP. One thread
computes, because the models are not thread-safe.
"""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from headscope.errors import UserError, ran_out_of_memory
from headscope.show.explore.answers import Explorer
from headscope.show.explore.export import export
from headscope.show.explore.protocol import REQUESTS, parse_request
from headscope.show.viewer.files import STATIC as VIEWER
from headscope.show.viewer.files import glossary_module
from headscope.terminal import printable

STATIC = Path(__file__).with_name("static")
MAX_BODY = 2**20
MAX_WAITING = 64
"""Maximum number of requests that wait for the model."""
LEFT_SECONDS = 0.2
"""Time between two tests whether the browser of a waiting request has disconnected."""

Result = TypeVar("Result")


class Worker:
    """The thread that computes, and the requests that wait for it."""

    def __init__(self) -> None:
        self.thread = ThreadPoolExecutor(1, "model")
        self.waiting = 0

    async def run(self, request: Request, work: Callable[[], Result]) -> Result:
        """The result of `work`. Drops work that has not begun when the browser disconnects."""
        if self.waiting >= MAX_WAITING:
            raise HTTPException(503, "too many requests are waiting: try again")
        self.waiting += 1
        future = asyncio.wrap_future(self.thread.submit(work))
        try:
            while not future.done():
                await asyncio.wait([future], timeout=LEFT_SECONDS)
                if not future.done() and await request.is_disconnected():
                    raise ClientDisconnect
            return future.result()
        except Exception as error:
            if ran_out_of_memory(error):
                raise HTTPException(507, "there is not enough memory: shorten the text") from None
            raise
        finally:
            future.cancel()
            self.waiting -= 1


def application(explorer: Explorer, token: str | None = None) -> ASGIApp:
    """The server. With a `token`, requests to the protocol need it in the header Authorization."""
    worker = Worker()

    async def answer(request: Request) -> Response:
        name, asked = await parsed(request)
        return JSONResponse(await worker.run(request, lambda: getattr(explorer, name)(asked)))

    async def exported(request: Request) -> Response:
        _, asked = await parsed(request)
        name, content_type, text = await worker.run(request, lambda: export(explorer, asked))
        disposition = {"Content-Disposition": f'attachment; filename="{name}"'}
        return Response(text, media_type=content_type, headers=disposition)

    async def stream(request: Request) -> Response:
        name, asked = await parsed(request)
        steps = getattr(explorer, name)(asked)
        first = await worker.run(request, lambda: next(steps, None))  # an error has a status

        async def events() -> AsyncIterator[str]:
            step = first
            try:
                while step is not None:
                    yield f"data: {json.dumps(step)}\n\n"
                    step = await worker.run(request, lambda: next(steps, None))
                yield "event: end\ndata: {}\n\n"
            except HTTPException as refused:
                yield f"event: error\ndata: {json.dumps({'error': refused.detail})}\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    async def parsed(request: Request) -> tuple[str, Any]:
        given = request.headers.get("authorization", "").encode()
        if token and not secrets.compare_digest(given, f"Bearer {token}".encode()):
            problem = "the token is missing or wrong: open the address that was printed"
            raise HTTPException(401, problem)
        if request.headers.get("content-type", "").partition(";")[0].lower() != "application/json":
            raise HTTPException(415, "the request must be application/json")
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BODY:
                raise HTTPException(413, f"the request has more than {MAX_BODY:,} bytes")
        name = request.url.path.rpartition("/")[2]
        try:
            data = json.loads(body)
        except (ValueError, RecursionError):
            raise HTTPException(400, "the request is not JSON") from None
        return name, parse_request(name, data)

    def failed(request: Request, error: Exception) -> Response:
        status = {UserError: 422, ClientDisconnect: 499}.get(type(error), 500)
        status = getattr(error, "status_code", status)
        bug = "this is a bug in headscope: its output has a traceback"
        reason = bug if status == 500 else str(getattr(error, "detail", error))
        # A message may quote a newline, or half of a surrogate pair, which UTF-8 cannot encode.
        line = printable(reason).encode(errors="backslashreplace").decode()
        return JSONResponse({"error": line}, status)

    glossary = Response(glossary_module(), media_type="text/javascript")
    others = {"write": stream, "deciders": stream, "export": exported}
    routes = [
        *(Route(f"/v1/{name}", others.get(name, answer), methods=["POST"]) for name in REQUESTS),
        Route("/viewer/glossary.js", glossary, methods=["GET"]),
        Mount("/viewer", StaticFiles(directory=VIEWER)),
        Mount("/", StaticFiles(directory=STATIC, html=True)),
    ]
    errors = (UserError, ClientDisconnect, HTTPException, Exception)
    return Starlette(routes=routes, exception_handlers=dict.fromkeys(errors, failed))
