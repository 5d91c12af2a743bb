"""The server of the page. It listens on the loopback address unless the user says otherwise.
Requests of other pages and to other hosts are refused.
"""

import re
import secrets
import socket
import sys
import threading
from collections.abc import Sequence
from ipaddress import ip_address

import uvicorn
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headscope.errors import UserError
from headscope.show.explore.answers import Explorer
from headscope.show.explore.routes import application

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
NAME = r"[\w-][\w.-]{,252}|\[[\da-f:.]+\]"
HOST = re.compile(rf"({NAME})(:\d+)?", re.ASCII)
ALLOWED = re.compile(rf"\*|(\*\.)?({NAME})", re.ASCII)
PORTS = 20
"""The number of ports that are tried."""

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


class Guard:
    """Refuses requests to other names than `hosts`, at any port, against DNS rebinding, and those
    from a page at another address, unless its host is in `pages`. Adds the headers of the page's
    policy. There are only HTTP requests: see `serve`."""

    def __init__(self, app: ASGIApp, hosts: Sequence[str], pages: Sequence[str]) -> None:
        self.app, self.hosts, self.pages = app, hosts, pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        answer, refused = self.app, self.refused(Headers(scope=scope))
        if refused is not None:
            match = HOST.fullmatch(refused)
            advice = f"start explore with allowed_hosts={match[1] if match else 'NAME'}"
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
    match = HOST.fullmatch(host)
    wildcards = tuple(name[1:] for name in names if name.startswith("*"))
    return match is not None and (match[1] in names or match[1].endswith(wildcards))


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
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((address[0], number))
            listening.listen(128)
        except OSError as error:
            problem = problem or str(error.strerror)
            listening.close()
        else:
            if number != port:
                print(f"port={port}: {problem}; using {number}", file=sys.stderr)
            return listening
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
