"""The server of the page: whom it answers, what it refuses, that it keeps on answering, and how the
command ends."""

import json
import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection

import pytest
from conversion.models import saved
from refusals import refused
from running import Script, until

from headscope.show.explore import routes, server
from headscope.show.explore.answers import Explorer
from headscope.show.explore.models import Models

JSON = {"Content-Type": "application/json"}
HUB, SPACE = "hub.example", "name-8765.app.github.dev"
ALLOWED = (HUB, "*.GitHub.dev", "[2001:db8::1]", "localhost")


@pytest.fixture(scope="module")
def explorer(tmp_path_factory: pytest.TempPathFactory) -> Explorer:
    folder = tmp_path_factory.mktemp("run") / "checkpoints"
    saved(folder, "model.layers=2")
    return Explorer(Models(str(folder.parent), None, "cpu"))


@pytest.fixture(scope="module")
def address(explorer: Explorer) -> str:
    """The host and the port of a server."""
    return served(explorer)[0]


@pytest.fixture(scope="module")
def allowing(explorer: Explorer) -> str:
    """The host and the port of a server that is also reached by the names `ALLOWED`."""
    return served(explorer, allowed_hosts=ALLOWED)[0]


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


def served(explorer: Explorer, **options: object) -> tuple[str, str]:
    """Host and port of a new server, and its token."""
    options = {"host": "127.0.0.1", "port": 0} | options
    _, url = server.serve(explorer, **options)  # type: ignore[arg-type]
    address, _, token = url.removeprefix("http://").rstrip("/").partition("/?token=")
    return address, token


def test_the_page_and_its_modules_are_served_with_a_strict_policy(address: str) -> None:
    for path in (
        *("/", "/explore.js", "/explore.css"),
        *("/viewer/viewer.js", "/viewer/viewer.css", "/viewer/glossary.js"),
    ):
        status, headers, body = send(address, "GET", path)
        assert status == 200
        assert body
        assert "default-src 'none'; script-src 'self'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
    assert b"<script>" not in send(address, "GET", "/")[2]
    for path in ("/server.py", "/../server.py", "/viewer/../../server.py", "/v1/read"):
        assert send(address, "GET", path)[0] in (404, 405)


ATTACKS = [
    ("evil.example", None, "evil.example"),  # DNS rebinding
    ("localhost.evil.example:8765", None, "localhost.evil.example"),
    ("github.dev", None, "github.dev"),
    ("github.dev.evil.example", None, "github.dev.evil.example"),
    ("localhost.", None, "localhost."),
    ("127.0.0.1:8765", "http://evil.example", "evil.example"),
    ("hub.example", "https://evil.example", "evil.example"),
    ("127.0.0.1:8765", "http://127.0.0.1:3000", "127.0.0.1"),  # a page of another local program
    ("127.0.0.1:8765", "null", None),
    ("127.0.0.1:8765", "http://127.0.0.1:8765@evil.example", None),
    ("user@127.0.0.1:8765", None, None),
    ("[::1", None, None),
    ("", None, None),
    ("<b>\xff", None, None),
    ("a" * 300, None, None),
]
"""Host and Origin of requests that nobody wants, and the name in the advice."""


@pytest.mark.parametrize(("host", "origin", "name"), ATTACKS)
def test_other_hosts_and_other_pages_are_refused(
    address: str, allowing: str, host: str, origin: str | None, name: str | None
) -> None:
    more = {"Host": host} | ({} if origin is None else {"Origin": origin})
    status, answer = ask(allowing, "open", more)
    assert status == 403
    assert f"allowed_hosts={name or 'NAME'}" in answer["error"]
    assert "\n" not in answer["error"]
    assert not set('<>"\xff') & set(answer["error"])
    assert ask(address, "open", more)[0] == send(address, "GET", "/", **more)[0] == 403


NAMED = [
    (HUB, f"https://{HUB}"),
    (HUB.upper(), f"https://{HUB}"),
    (f"{HUB}:443", f"https://{HUB}"),
    ("127.0.0.1:8765", f"https://{HUB}"),  # a proxy that changes Host
    (SPACE, f"https://{SPACE}"),
    (SPACE, "http://localhost:8765"),  # a proxy that changes Origin
    ("[2001:DB8::1]:8765", "http://[2001:db8::1]:8765"),
]
LOCAL = ["127.0.0.1:{}", "LOCALHOST:{}", "[::1]:{}", "localhost:9000", "localhost"]
"""Hosts of requests to every server, also with ssh -L 9000:localhost:8765."""


def test_allowed_hosts_and_every_port_of_the_loopback_address_are_answered(
    address: str, allowing: str
) -> None:
    for host, origin in NAMED:
        more = {"Host": host, "Origin": origin}
        assert ask(allowing, "open", more)[0] == 200, more
        assert ask(address, "open", more)[0] == 403, more
    for name in LOCAL:
        host = name.format(address.rpartition(":")[2])
        for origins in ({}, {"Origin": f"http://{host.lower()}"}, {"Origin": f"https://{host}"}):
            assert ask(address, "open", {"Host": host, **origins})[0] == 200, host
            assert send(address, "GET", "/", Host=host, **origins)[0] == 200, host


@pytest.mark.parametrize(
    "name", ["https://hub.example", "hub.example:443", "hub.example/", ".hub.example", "*hub", ""]
)
def test_an_allowed_host_is_a_name(explorer: Explorer, name: str) -> None:
    with refused(f"allowed_hosts={name} ", "*.hub.example"):
        served(explorer, allowed_hosts=[name])


@pytest.mark.parametrize("hosts", [b"", b"Host: localhost\r\nHost: evil.example\r\n", b"Host\r\n"])
@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_a_request_to_no_host_or_to_two_is_refused(
    address: str, hosts: bytes, version: bytes
) -> None:
    name, port = address.split(":")
    with socket.create_connection((name, int(port)), timeout=10) as client:
        client.sendall(b"GET / HTTP/" + version + b"\r\n" + hosts + b"\r\n")
        assert client.recv(1000).split()[1] in (b"400", b"403")
    assert ask(address, "open")[0] == 200


@pytest.mark.parametrize("host", ["LocalHost", "127.1", "127.0.0.2", "0:0:0:0:0:0:0:1"])
def test_the_printed_address_is_one_that_is_answered(explorer: Explorer, host: str) -> None:
    address, _ = served(explorer, host=host)
    assert ask(address, "open", {"Origin": f"http://{address}"})[0] == 200


@pytest.mark.parametrize("options", [{"host": "0.0.0.0"}, {"allowed_hosts": ["*"]}], ids=str)
def test_another_address_and_any_host_need_the_token(
    explorer: Explorer, options: dict[str, object]
) -> None:
    address, token = served(explorer, **options)
    assert len(token) > 30
    here = f"127.0.0.1:{address.rpartition(':')[2]}"
    assert send(here, "GET", "/")[0] == 200
    for wrong in ({}, {"Authorization": "Bearer x"}, {"Authorization": token}):
        assert ask(here, "open", wrong)[0] == 401
    bearer = {"Authorization": f"Bearer {token}"}
    for host in (here, "class.example:8765"):
        assert ask(here, "open", {**bearer, "Host": host, "Origin": f"http://{host}"})[0] == 200
    assert ask(here, "open", {**bearer, "Host": "<b>"})[0] == 403
    other = {**bearer, "Host": here, "Origin": "http://x.example"}
    assert ask(here, "open", other)[0] == (200 if "allowed_hosts" in options else 403)


def test_wrong_requests_get_one_line(address: str) -> None:
    for body, status, words, *name in [
        (b"", 400, "JSON"),
        (b"{", 400, "JSON"),
        (b"[" * 100_000, 400, "JSON"),
        (b'{"text": "a", "model": "\\ud800"}', 422, "model="),
        (b"{}", 422, "format is missing", "export"),
        (b'{"other": "a", "copies": [{}]}', 422, "copies[0].head is missing", "patch"),
        (b'{"text": "a", "temperature": NaN}', 422, "temperature"),
        (b'{"text": "' + b"a" * 2**20 + b'"}', 413, "bytes"),
    ]:
        found, _, answer = send(address, "POST", f"/v1/{[*name, 'read'][0]}", body, **JSON)
        said = json.loads(answer)["error"]
        assert (found, "\n" in said) == (status, False)
        assert words in said
        assert "--help" not in said
    assert send(address, "POST", "/v1/read", b"{}")[0] == 415
    assert send(address, "POST", "/v1/nothing", b"{}", **JSON)[0] == 405
    assert ask(address, "write", text="a", top_p=7)[0] == 422
    assert "\n" not in ask(address, "read", text="a", zero=["L0\nH0"])[1]["error"]
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    assert send(address, "GET", "/v1/read", **upgrade)[0] == 404


def slow(explorer: Explorer, monkeypatch: pytest.MonkeyPatch, seconds: float) -> list[object]:
    """Makes reading slow. Returns the requests whose reading has begun."""
    began: list[object] = []
    read = explorer.read

    def read_slowly(request):
        began.append(request)
        time.sleep(seconds)
        return read(request)

    monkeypatch.setattr(explorer, "read", read_slowly)
    return began


def test_requests_of_a_browser_that_has_left_are_dropped(
    explorer: Explorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = slow(explorer, monkeypatch, 0.6)
    address, _ = served(explorer)
    connections = [HTTPConnection(address) for _ in range(5)]
    for connection in connections:
        connection.request("POST", "/v1/read", json.dumps({"text": "We"}), JSON)
    until(lambda: began, "the first reading")
    for connection in connections:
        connection.close()
    time.sleep(0.3)
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
    connection = HTTPConnection(served(explorer)[0])
    body = json.dumps({"text": "W", "max_new_tokens": 10_000, "temperature": 0})
    connection.request("POST", "/v1/write", body, JSON)
    answer = connection.getresponse()
    answer.read(10)
    answer.close()
    connection.close()
    written = -1
    while written < (written := len(steps)):
        time.sleep(0.3)
    assert written < 10_000


def test_too_many_waiting_requests_are_refused(
    explorer: Explorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow(explorer, monkeypatch, 0.2)
    monkeypatch.setattr(routes, "MAX_WAITING", 3)
    address, _ = served(explorer)
    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(lambda _: ask(address, "read", text="We"), range(8))
        assert {status for status, _ in answers} == {200, 503}
    assert ask(address, "read", text="We")[0] == 200


def test_a_bug_is_shown_as_one(explorer: Explorer, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(request):
        raise KeyError("oops")

    monkeypatch.setattr(explorer, "read", broken)
    status, answer = ask(served(explorer)[0], "read", text="We")
    assert status == 500
    assert "bug" in answer["error"]


MISTAKES = ["checkpoint=nothing", "other=nothing", "host=999.1.1.1", "port=70000", "device=tpu"]
MISTAKES += ["allowed_hosts=http://a.example"]


@pytest.mark.parametrize("word", MISTAKES)
def test_a_mistake_is_told_in_one_line(script: Script, explorer: Explorer, word: str) -> None:
    said = script(
        "explore", "open_browser=false", f"checkpoint={explorer.models.paths['this']}", word
    )
    assert said.code == 1
    last = said.err.splitlines()[-1]
    assert last.startswith("Error: ")
    assert word in last
    assert "Traceback" not in said.err


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=str)
def test_a_signal_ends_the_command_within_a_second(
    explorer: Explorer, number: signal.Signals
) -> None:
    command = [sys.executable, "-m", "headscope", "explore", "open_browser=false", "port=0"]
    command.append(f"checkpoint={explorer.models.paths['this']}")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        try:
            found = re.search(r"http://(\S+?)/", process.stdout.readline())
            assert found[1].startswith("127.0.0.1:")  # not reached from other machines
            connection = HTTPConnection(found[1])
            body = json.dumps({"text": "W", "max_new_tokens": 10_000})
            connection.request("POST", "/v1/write", body, JSON)
            assert connection.getresponse().read(10)
            began = time.monotonic()
            process.send_signal(number)
            assert process.wait(10) == -number
            assert time.monotonic() - began < 1
            assert "Traceback" not in process.stderr.read()
        finally:
            process.kill()
