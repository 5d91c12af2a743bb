"""The server of the page: static files, and the protocol as JSON over HTTP.

It listens on the loopback address unless the user says otherwise. Requests of other pages and to
other hosts are refused. One thread computes: the models are not made for several at once.
"""

import asyncio
import json
import re
import secrets
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address
from pathlib import Path
from typing import Any, TypeVar

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headscope.errors import UserError, ran_out_of_memory
from headscope.explore.answers import Explorer
from headscope.explore.export import export
from headscope.explore.protocol import parse_request
from headscope.terminal import printable
from headscope.viewer.page import STATIC as VIEWER

STATIC = Path(__file__).with_name("static")
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
NAME = r"[\w-][\w.-]{,252}|\[[\da-f:.]+\]"
HOST = re.compile(rf"({NAME})(:\d+)?", re.ASCII)
ALLOWED = re.compile(rf"\*|(\*\.)?({NAME})", re.ASCII)
MAX_BODY = 2**20
MAX_WAITING = 64
"""Maximum number of requests that wait for the model."""
PORTS = 20
"""The number of ports that are tried."""
LEFT_SECONDS = 0.2
"""How often a waiting request looks whether the browser has left."""

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}

Result = TypeVar("Result")


class Refused(Exception):
    """A request that is not answered. The status is that of HTTP."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Worker:
    """The thread that computes, and the requests that wait for it."""

    def __init__(self) -> None:
        self.thread = ThreadPoolExecutor(1, "model")
        self.waiting = 0

    async def run(self, request: Request, work: Callable[[], Result]) -> Result:
        """The result of `work`. Work that has not begun is dropped when the browser has left."""
        if self.waiting >= MAX_WAITING:
            raise Refused(503, "too many requests are waiting: try again")
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
                raise Refused(507, "there is not enough memory: shorten the text") from None
            raise
        finally:
            future.cancel()
            self.waiting -= 1


def application(explorer: Explorer, token: str | None = None) -> ASGIApp:
    """The server. With a `token`, requests to the protocol need it in the header Authorization."""
    worker = Worker()
    answers: dict[str, Callable[[Any], dict[str, Any]]]
    answers = {"open": explorer.open, "read": explorer.read, "patch": explorer.patch}

    async def answer(request: Request) -> Response:
        name, asked = await parsed(request)
        return JSONResponse(await worker.run(request, lambda: answers[name](asked)))

    async def exported(request: Request) -> Response:
        _, asked = await parsed(request)
        name, content_type, text = await worker.run(request, lambda: export(explorer, asked))
        disposition = {"Content-Disposition": f'attachment; filename="{name}"'}
        return Response(text, media_type=content_type, headers=disposition)

    async def write(request: Request) -> Response:
        _, asked = await parsed(request)
        steps = explorer.write(asked)
        first = await worker.run(request, lambda: next(steps, None))  # an error has a status

        async def events() -> AsyncIterator[str]:
            step = first
            try:
                while step is not None:
                    yield f"data: {json.dumps(step)}\n\n"
                    step = await worker.run(request, lambda: next(steps, None))
                yield "event: end\ndata: {}\n\n"
            except Refused as refused:
                yield f"event: error\ndata: {json.dumps({'error': str(refused)})}\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    async def parsed(request: Request) -> tuple[str, Any]:
        if token and not secrets.compare_digest(
            request.headers.get("authorization", "").encode(), f"Bearer {token}".encode()
        ):
            raise Refused(401, "the token is missing or wrong: open the address that was printed")
        if request.headers.get("content-type", "").partition(";")[0].lower() != "application/json":
            raise Refused(415, "the request must be application/json")
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BODY:
                raise Refused(413, f"the request has more than {MAX_BODY:,} bytes")
        name = request.url.path.rpartition("/")[2]
        try:
            data = json.loads(body)
        except (ValueError, RecursionError):
            raise Refused(400, "the request is not JSON") from None
        return name, parse_request(name, data)

    def failed(request: Request, error: Exception) -> Response:
        status = {UserError: 422, ClientDisconnect: 499}.get(type(error), 500)
        status = getattr(error, "status", getattr(error, "status_code", status))
        bug = "this is a bug in headscope: its output has a traceback"
        reason = bug if status == 500 else str(getattr(error, "detail", error))
        # A message may quote a newline, or half of a surrogate pair, which UTF-8 cannot encode.
        line = printable(reason).encode(errors="backslashreplace").decode()
        return JSONResponse({"error": line}, status)

    routes = [
        *(Route(f"/v1/{name}", answer, methods=["POST"]) for name in answers),
        Route("/v1/write", write, methods=["POST"]),
        Route("/v1/export", exported, methods=["POST"]),
        Mount("/viewer", StaticFiles(directory=VIEWER)),
        Mount("/", StaticFiles(directory=STATIC, html=True)),
    ]
    errors = (Refused, UserError, ClientDisconnect, HTTPException, Exception)
    return Starlette(routes=routes, exception_handlers=dict.fromkeys(errors, failed))


class Guard:
    """Answers only requests to the names `hosts` at any port, against DNS rebinding, from a page at
    the same address or of a host in `pages`. Adds the headers of the page's policy. There are only
    HTTP requests: see `serve`."""

    def __init__(self, app: ASGIApp, hosts: Sequence[str], pages: Sequence[str]) -> None:
        self.app, self.hosts, self.pages = app, hosts, pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message["headers"], *added]
            await send(message)

        answer, refused = self.app, self.refused(Headers(scope=scope))
        if refused is not None:
            found = HOST.fullmatch(refused)
            advice = f"start explore with allowed_hosts={found[1] if found else 'NAME'}"
            error = f"this address is refused: if you trust it, {advice}"
            answer = JSONResponse({"error": error}, 403)
        await answer(scope, receive, with_headers)

    def refused(self, headers: Headers) -> str | None:
        """Returns the host that is not allowed, or None if the request is accepted."""
        host = ",".join(headers.getlist("host")).lower()  # several are not a host
        if not includes(self.hosts, host):
            return host
        for origin in headers.getlist("origin"):
            page = origin.lower().partition("://")[2]
            if page != host and not includes(self.pages, page):
                return page
        return None


def includes(names: Sequence[str], host: str) -> bool:
    """Whether a host such as `localhost:8765` has one of `names`, such as `*.hub.example`."""
    found = HOST.fullmatch(host)
    wildcards = tuple(name[1:] for name in names if name.startswith("*"))
    return found is not None and (found[1] in names or found[1].endswith(wildcards))


def listen(host: str, port: int) -> socket.socket:
    """A socket at the first free port from `port` on. Raises UserError if none is free, or if the
    host is not an address of this machine."""
    try:
        [(family, *_, address), *_] = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise UserError(f"host={host}: {error.strerror}; give an address of this machine") from None
    problem = ""
    for number in range(port, min(port + PORTS, 2**16)):
        # asyncio sends at once (TCP_NODELAY) only if the protocol is given.
        found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((address[0], number))
            found.listen(128)
        except OSError as error:
            problem = problem or str(error.strerror)
            found.close()
        else:
            if number != port:
                print(f"port={port}: {problem}; using {number}", file=sys.stderr)
            return found
    problem = problem or "there is no such port"
    raise UserError(f"host={host}, port={port}: {problem}; give another one")


def serve(
    explorer: Explorer, host: str, port: int, allowed_hosts: Sequence[str] = ()
) -> tuple[threading.Thread, str]:
    """Starts the server in a thread. Returns the thread and the address of the page."""
    allowed = [name.lower() for name in allowed_hosts]
    for name in allowed:
        if not ALLOWED.fullmatch(name):
            advice = "such as hub.example, *.hub.example, or * for any: no https:// and no port"
            raise UserError(f"allowed_hosts={name} must be the name of a host, {advice}")
    listening = listen(host, port)
    address, port, *_ = listening.getsockname()
    # The proxy of a named host has its own login. With *, every web page could send requests.
    needs_token = "*" in allowed or not ip_address(address).is_loopback
    token = secrets.token_urlsafe() if needs_token else None
    every = ip_address(address).is_unspecified
    shown = [socket.gethostname()] if every else [address, host.lower()]
    names = [f"[{name}]" if ":" in name else name for name in shown]
    hosts = ["*"] if every else [*names, *LOOPBACK, *allowed]
    config = uvicorn.Config(
        Guard(application(explorer, token), hosts, allowed),
        log_config=None,  # warnings and errors go to standard error
        lifespan="off",
        ws="none",
        server_header=False,
        timeout_keep_alive=30,
        limit_concurrency=1000,
    )
    server = uvicorn.Server(config)
    # Outside the main thread, uvicorn leaves the signals to `headscope.stop`.
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()
    return thread, f"http://{names[0]}:{port}/" + (f"?token={token}" if token else "")
