"""The server of the page: whom it answers, what it refuses, and that it keeps on answering."""

import json
import socket
import threading
import time
from http.client import HTTPConnection

import pytest
from conversion.models import saved
from refusals import refused

from headscope.errors import UserError
from headscope.explore import server
from headscope.explore.answers import Explorer
from headscope.explore.models import Models

JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def explorer(tmp_path_factory: pytest.TempPathFactory) -> Explorer:
    folder = tmp_path_factory.mktemp("run") / "checkpoints"
    saved(folder, "model.layers=2")
    return Explorer(Models(str(folder.parent), None, "cpu"))


@pytest.fixture(scope="module")
def address(explorer: Explorer) -> str:
    """The host and the port of a server."""
    _, url = server.serve(explorer, host="127.0.0.1", port=0)
    return url.removeprefix("http://").rstrip("/")


def send(address: str, method: str, path: str, body: str | bytes = "", **headers: str):
    """The status, the headers and the body of an answer."""
    connection = HTTPConnection(address, timeout=30)
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    found = answer.status, dict(answer.getheaders()), answer.read()
    connection.close()
    return found


def ask(address: str, name: str, more: dict[str, str] | None = None, **request: object):
    """The status of a request, and its answer."""
    body = json.dumps(request)
    status, _, answer = send(address, "POST", f"/v1/{name}", body, **JSON, **(more or {}))
    return status, json.loads(answer)


def test_the_page_and_its_modules_are_served_with_a_strict_policy(address: str) -> None:
    for path in ("/", "/explore.js", "/explore.css", "/viewer/viewer.js", "/viewer/viewer.css"):
        status, headers, body = send(address, "GET", path)
        assert status == 200
        assert body
        assert "default-src 'none'; script-src 'self'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
    assert b"<script>" not in send(address, "GET", "/")[2]
    for path in ("/server.py", "/../server.py", "/viewer/../../server.py", "/v1/read"):
        assert send(address, "GET", path)[0] in (404, 405)


def test_other_hosts_and_other_pages_are_refused(address: str) -> None:
    port = address.rpartition(":")[2]
    for host in (f"evil.example:{port}", "127.0.0.1", "127.0.0.1:1", ""):
        assert ask(address, "open", {"Host": host})[0] == 403
        assert send(address, "GET", "/", Host=host)[0] == 403
    for origin in ("http://evil.example", "null", f"https://{address}", f"http://localhost:{port}"):
        assert ask(address, "open", {"Origin": origin})[0] == 403
    for host in (address, f"localhost:{port}", f"[::1]:{port}"):
        assert ask(address, "open", {"Host": host, "Origin": f"http://{host}"})[0] == 200


@pytest.mark.parametrize("host", ["LocalHost", "127.1", "127.0.0.2", "0:0:0:0:0:0:0:1"])
def test_the_printed_address_is_one_that_is_answered(explorer: Explorer, host: str) -> None:
    _, url = server.serve(explorer, host=host, port=0)
    address = url.removeprefix("http://").rstrip("/")
    assert ask(address, "open", {"Origin": f"http://{address}"})[0] == 200


def test_a_browser_leaves_out_port_80(explorer: Explorer) -> None:
    try:
        server.serve(explorer, host="127.0.0.3", port=80)
    except UserError:
        pytest.skip("port 80 is in use, or needs the rights of root")
    assert send("127.0.0.3:80", "GET", "/", Host="127.0.0.3")[0] == 200


def test_another_address_needs_the_token(explorer: Explorer) -> None:
    _, url = server.serve(explorer, host="0.0.0.0", port=0)
    address, _, token = url.removeprefix("http://").partition("/?token=")
    assert len(token) > 30
    here = f"127.0.0.1:{address.rpartition(':')[2]}"
    assert send(here, "GET", "/")[0] == 200
    for wrong in ({}, {"Authorization": "Bearer x"}, {"Authorization": token}):
        assert ask(here, "open", wrong)[0] == 401
    assert ask(here, "open", {"Authorization": f"Bearer {token}"})[0] == 200


def test_wrong_requests_get_one_line(address: str) -> None:
    for body, status, words in [
        (b"", 400, "JSON"),
        (b"{", 400, "JSON"),
        (b"[" * 100_000, 400, "JSON"),
        (b"[]", 422, "object"),
        (b'{"text": "a", "model": "\\ud800"}', 422, "model="),
        (b'{"text": "a", "position": 1e400}', 422, "position"),
        (b'{"text": "a", "temperature": NaN}', 422, "temperature"),
        (b'{"text": "' + b"a" * 2**20 + b'"}', 413, "bytes"),
    ]:
        found, _, answer = send(address, "POST", "/v1/read", body, **JSON)
        said = json.loads(answer)["error"]
        assert (found, "\n" in said) == (status, False)
        assert words in said
    assert send(address, "POST", "/v1/read", b"{}")[0] == 415
    assert send(address, "POST", "/v1/nothing", b"{}", **JSON)[0] == 405
    assert ask(address, "write", text="a", top_p=7)[0] == 422
    assert "\n" not in ask(address, "read", text="a", zero=["L0\nH0"])[1]["error"]
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    assert send(address, "GET", "/v1/read", **upgrade)[0] == 404


def test_tokens_arrive_one_by_one(address: str) -> None:
    body = json.dumps({"text": "We", "max_new_tokens": 3})
    status, headers, answer = send(address, "POST", "/v1/write", body, **JSON)
    assert status == 200
    assert headers["content-type"].startswith("text/event-stream")
    *events, last, rest = answer.decode().split("\n\n")
    assert [json.loads(each.removeprefix("data: "))["id"] for each in events]
    assert len(events) == 3
    assert (last, rest) == ("event: end\ndata: {}", "")


def slow(explorer: Explorer, monkeypatch: pytest.MonkeyPatch, seconds: float) -> list[float]:
    """Makes reading slow. Returns the times at which readings began."""
    began: list[float] = []
    read = explorer.read

    def read_slowly(request):
        began.append(time.monotonic())
        time.sleep(seconds)
        return read(request)

    monkeypatch.setattr(explorer, "read", read_slowly)
    return began


def test_requests_of_a_browser_that_has_left_are_dropped(
    explorer: Explorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = slow(explorer, monkeypatch, 1.0)
    _, url = server.serve(explorer, host="127.0.0.1", port=0)
    address = url.removeprefix("http://").rstrip("/")
    body = json.dumps({"text": "We"})
    connections = []
    for _ in range(5):
        connections.append(HTTPConnection(address))
        connections[-1].request("POST", "/v1/read", body, JSON)
    time.sleep(0.3)
    for connection in connections:
        connection.close()
    time.sleep(0.5)
    assert ask(address, "read", text="We")[0] == 200
    assert len(began) == 2  # the one that had begun, and the last one


def test_a_stream_ends_when_the_browser_leaves(
    explorer: Explorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, steps = explorer.write, []

    def counted(request):
        for step in write(request):
            steps.append(step)
            yield step

    monkeypatch.setattr(explorer, "write", counted)
    _, url = server.serve(explorer, host="127.0.0.1", port=0)
    connection = HTTPConnection(url.removeprefix("http://").rstrip("/"))
    body = json.dumps({"text": "W", "max_new_tokens": 10_000, "temperature": 0})
    connection.request("POST", "/v1/write", body, JSON)
    answer = connection.getresponse()
    answer.read(10)
    answer.close()
    connection.close()
    time.sleep(0.5)
    written = len(steps)
    time.sleep(0.3)
    assert len(steps) == written < 10_000


def test_too_many_waiting_requests_are_refused(
    explorer: Explorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow(explorer, monkeypatch, 0.2)
    monkeypatch.setattr(server, "MAX_WAITING", 3)
    _, url = server.serve(explorer, host="127.0.0.1", port=0)
    address = url.removeprefix("http://").rstrip("/")
    statuses: list[int] = []
    threads = [
        threading.Thread(target=lambda: statuses.append(ask(address, "read", text="We")[0]))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(statuses) == {200, 503}
    assert ask(address, "read", text="We")[0] == 200


def test_a_bug_is_shown_as_one(
    explorer: Explorer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(request):
        raise KeyError("oops")

    monkeypatch.setattr(explorer, "read", broken)
    _, url = server.serve(explorer, host="127.0.0.1", port=0)
    status, answer = ask(url.removeprefix("http://").rstrip("/"), "read", text="We")
    assert status == 500
    assert "bug" in answer["error"]


def test_a_port_in_use_takes_the_next_one(
    explorer: Explorer, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with server.listen("127.0.0.1", port) as found:
            used = found.getsockname()[1]
    assert used > port
    assert f"port={port}: Address already in use; using {used}" in capsys.readouterr().err
    with refused("host=no.such.host.example"):
        server.listen("no.such.host.example", 8765)
    with refused("port=65536"):
        server.listen("127.0.0.1", 65536)
