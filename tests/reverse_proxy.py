"""A reverse proxy with a prefix, as JupyterHub has one in front of the servers of its users."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HOP_BY_HOP = ("connection", "keep-alive", "transfer-encoding")


@contextmanager
def reverse_proxy(address: str, prefix: str) -> Iterator[int]:
    """Forwards requests below `prefix`, such as `/user/x`, to the server at `address`, without the
    prefix and with the Host and the Origin that the browser sends. Yields its port."""

    class Forward(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if not self.path.startswith(prefix):
                self.send_error(404)
                return
            path = f"/{self.path.removeprefix(prefix).removeprefix('/')}"
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            connection = HTTPConnection(address, timeout=30)
            connection.request(self.command, path, body, dict(self.headers))
            answer = connection.getresponse()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in HOP_BY_HOP:
                    self.send_header(name, value)
            self.end_headers()
            while part := answer.read1(2**16):
                self.wfile.write(part)
                self.wfile.flush()
            connection.close()

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *message: object) -> None:
            """Prints nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Forward) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()
