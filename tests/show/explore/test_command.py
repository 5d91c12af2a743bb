"""The command explore, as a process."""

import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

import psutil
import pytest
from conversion.models import saved
from running import Script

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("outputs") / "run"
    saved(folder / "checkpoints", "model.layers=2 model.block_size=32")
    return folder


@contextmanager
def started(*words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process of the command with these words, and the address that it printed."""
    command = [sys.executable, "-m", "headscope", "explore", "open_browser=false", *words]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            found = re.search(r"http://(\S+?)/", line)
            assert found, line + str(process.stderr and process.stderr.read())
            yield process, found[1]
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=str)
def test_a_signal_ends_it_within_a_second(run: Path, number: signal.Signals) -> None:
    with started(f"checkpoint={run}", "port=0") as (process, address):
        connection = HTTPConnection(address)
        body = json.dumps({"text": "W", "max_new_tokens": 10_000})
        connection.request("POST", "/v1/write", body, {"Content-Type": "application/json"})
        assert connection.getresponse().read(10)
        began = time.monotonic()
        process.send_signal(number)
        assert process.wait(10) == -number
        assert time.monotonic() - began < 1
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


def test_two_processes_take_two_ports(run: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = f"checkpoint={run}", f"port={port}"
    with started(*words) as (first, one), started(*words) as (_, two):
        assert one != two
        assert one == f"127.0.0.1:{port}"
        addresses = [each.laddr.ip for each in psutil.Process(first.pid).net_connections()]
    assert set(addresses) == {"127.0.0.1"}


def test_mistakes_are_told_in_one_line(script: Script, run: Path) -> None:
    for words, advice in [
        (["checkpoint=nothing"], "checkpoint=nothing"),
        ([f"checkpoint={run}", "other=nothing"], "other=nothing"),
        ([f"checkpoint={run}", "host=999.1.1.1"], "host=999.1.1.1"),
        ([f"checkpoint={run}", "port=70000"], "port=70000"),
        ([f"checkpoint={run}", "allowed_hosts=http://a.example"], "allowed_hosts=http://a.example"),
        ([f"checkpoint={run}", "device=tpu"], "device=tpu"),
    ]:
        said = script("explore", "open_browser=false", *words)
        assert said.code == 1
        last = said.err.splitlines()[-1]
        assert last.startswith("Error: ")
        assert advice in last
        assert "Traceback" not in said.err
