"""Measures the command explore: the time of each action, many clients at once, and random requests.
Prints JSON rows for docs/explore.md: python -m benchmarks.explore actions|clients|random

The models are the default one, trained for one step, and one with the shape of GPT-2 (124 M), whose
weights are random. The text has 40 tokens. Every request of a round has another text, so that
nothing is read from memory, except where the action is a click on the same text.
"""

import json
import os
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import chdir, redirect_stdout
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import psutil
import torch

import headscope
from benchmarks.browser import chromium, explore, painted
from benchmarks.runner import seconds_of

CPU = torch.device("cpu")
ROUNDS = 15
TOKENS = 40
CLIENTS, SECONDS = 20, 30
REQUESTS = 10_000
KEY = """const field = document.querySelector(".editor-card textarea");
field.value += String.fromCharCode(97 + arguments[0] % 26);
field.dispatchEvent(new Event("input"))"""


def post(address: str, name: str, **request: Any) -> bytes:
    """The answer to a request."""
    return send(address, name, json.dumps(request).encode())


def send(address: str, name: str, body: bytes) -> bytes:
    asked = Request(f"{address}v1/{name}", body, {"Content-Type": "application/json"})
    with urlopen(asked, timeout=120) as answer:
        return answer.read()


def default_model(folder: Path) -> str:
    """The path of a model in `folder`."""
    with chdir(folder), redirect_stdout(sys.stderr):
        words = ["trainer.max_steps=1", "callbacks=plain", "~logger"]
        return str(headscope.train(words).folder.resolve())


def gpt2_shape(folder: Path) -> str:
    """The path of a model in `folder`, with a tokenizer for bytes."""
    import transformers

    from headscope.conversion.tokenizer_files import tokenizer_files
    from headscope.data.tokenizer import byte

    torch.manual_seed(0)
    large = folder / "gpt2"
    transformers.GPT2LMHeadModel(transformers.GPT2Config()).save_pretrained(large)
    for name, content in tokenizer_files(byte([])).items():
        (large / name).write_text(content, "utf-8")
    return str(large)


def text(n: int) -> list[int]:
    """The tokens of another text for each n."""
    return [(n + at * 7) % 250 for at in range(TOKENS)]


def switch(address: str, n: int) -> None:
    for zero in ([], ["L1H1"]):
        post(address, "read", tokens=text(n), zero=zero, layers=[0])


def patch(address: str, n: int, **options: Any) -> None:
    post(address, "patch", tokens=text(n), other_tokens=text(n + 1), **options)


ACTIONS: dict[str, Callable[[str, int], Any]] = {
    "type a character": lambda at, n: post(at, "read", tokens=text(n), layers=[0]),
    "select a token": lambda at, n: post(at, "read", tokens=text(0), position=n, layers=[0]),
    "switch a head off": switch,
    "write 20 tokens": lambda at, n: post(at, "write", tokens=text(n), max_new_tokens=20),
    "patch": partial(patch, copies=[{"head": "L1H1", "position": 3}]),
    "patch every head": partial(patch, every_head=True),
}
"""Each action of the page, as the requests that it sends to an address in round n."""


def milliseconds(work: Callable[[int], Any]) -> float:
    """The median time of a call, after one call that is not counted."""
    times = [seconds_of(partial(work, number), CPU) for number in range(ROUNDS + 1)]
    return 1000 * statistics.median(times[1:])


def time_actions(folder: Path) -> None:
    rows: dict[str, dict[str, float]] = {}
    for name, model in {"default": default_model, "gpt2_shape": gpt2_shape}.items():
        given = model(folder)
        began = time.perf_counter()
        with explore(given) as (address, _):
            found = {"start the command": 1000 * (time.perf_counter() - began)}
            for action, work in ACTIONS.items():
                found[action] = milliseconds(partial(work, address))
            with chromium() as browser:
                browser.get(address)
                painted(browser)
                press = partial(painted, browser, KEY)
                found["in Chromium: type until painted"] = milliseconds(press)
        for action, ms in found.items():
            rows.setdefault(action, {})[name] = round(ms, 1)
    for action, row in rows.items():
        print(json.dumps({"action": action, **row}))


def many_clients(folder: Path) -> None:
    """CLIENTS clients type at once for SECONDS."""
    times: list[float] = []
    failures: list[OSError] = []
    with explore(default_model(folder)) as (address, process):
        end = time.monotonic() + SECONDS
        post(address, "read", text="warm")
        before = memory(process)

        def client(number: int) -> None:
            turn = 0
            while time.monotonic() < end:
                began = time.perf_counter()
                try:
                    tokens = [(number + turn + at) % 250 for at in range(TOKENS)]
                    post(address, "read", tokens=tokens, layers=[0])
                except OSError as error:
                    failures.append(error)
                times.append(1000 * (time.perf_counter() - began))
                turn += 1

        with ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(client, range(CLIENTS)))  # raises the errors of the threads
        row = {
            "answers": len(times),
            "failures": len(failures),
            "median_ms": round(statistics.median(times), 1),
            "slowest_ms": round(max(times), 1),
            "mib_before": before,
            "mib_after": memory(process),
        }
    print(json.dumps(row))


def random_requests(folder: Path) -> None:
    """REQUESTS requests, most of them wrong in some way."""
    draw, statuses, halves = random.Random(0), Counter[int](), []
    with explore(default_model(folder)) as (address, process):
        for number in range(REQUESTS):
            try:
                send(address, *random_request(draw))
                statuses[200] += 1
            except HTTPError as error:
                statuses[error.code] += 1
            if number + 1 in (REQUESTS // 2, REQUESTS):
                halves.append(memory(process))
    bad = sum(count for code, count in statuses.items() if code >= 500)
    row = {
        "answers": statuses[200],
        "refused": REQUESTS - statuses[200] - bad,
        "failures": bad,
        "mib_half_way": halves[0],
        "mib_after": halves[1],
    }
    print(json.dumps(row))


USUAL: dict[str, list[Any]] = {
    "model": ["this"],
    "zero": [[], ["L0H1"]],
    "mean": [[], ["L1H1", "L2H0"]],
    "half": [[], ["L3H3"]],
    "position": [-1, 0],
    "target": [0, 8191],
    "also": [[], [1, 2]],
    "layers": [[], [0], [0, 1, 2, 3], [0] * 1000],
    "temperature": [0, 0.8, 1e-300, 1e300],
    "top_k": [1, 10, 10**9, None],
    "top_p": [0.5, 1, None],
    "max_new_tokens": [0, 1, 5],
    "seed": [0, 2**62],
    "copies": [[], [{"head": "L1H1", "position": 0}], [{"head": "L0H0", "position": None}] * 20],
    "every_head": [True, False],
    "format": ["html", "csv", "python"],
    "against": [{}, {"zero": ["L0H0"]}, None],
}
ODD: list[Any] = [
    *(None, True, -1, 10**6, 10**30, 0.5, float("nan")),
    *("", "../x", "L9H9", [], {}, [None], ["L0H1"] * 2),
]
SWITCHES, SAMPLING = ["zero", "mean", "half"], ["temperature", "top_k", "top_p"]
KEYS = {
    "open": ["model"],
    "read": ["model", *SWITCHES, "position", "target", "also", "layers", *SAMPLING],
    "write": [*SWITCHES, *SAMPLING, "seed"],
    "patch": ["zero", "mean", "copies", "every_head"],
    "export": [*SWITCHES, "position", "target", "against"],
    "other": ["model"],
}


def random_request(draw: random.Random) -> tuple[str, bytes]:
    """The name and the body of a request: one in three is wrong."""
    name = draw.choice(list(KEYS))
    letters = [65, 97, 32, 10, 0x4E2D, 0x1F99C]
    text = "".join(chr(draw.choice(letters)) for _ in range(draw.randrange(200)))
    request: dict[str, Any] = {} if name == "open" else {"text": text}
    always = {"write": ["max_new_tokens"], "export": ["format"]}.get(name, [])
    for key in [*always, *draw.sample(KEYS[name], draw.randrange(len(KEYS[name]) + 1))]:
        request[key] = draw.choice(USUAL[key])
    if name == "patch":
        request["other"] = text[::-1]
    if draw.random() < 0.25:
        key = draw.choice([*KEYS[name], "text", "tokens", "\x00", "__class__"])
        request[key] = draw.choice([*ODD, "\ud800", [draw.randrange(-1, 9000)] * 99])
    body = json.dumps(request).encode()
    if draw.random() < 0.05:
        body = draw.choice([b"", b"[]", b"[" * 10**5, os.urandom(100), body[:-1], b'"x"'])
    return name, body


def memory(process: int) -> int:
    """The resident memory of a process, in MiB."""
    return psutil.Process(process).memory_info().rss // 2**20


if __name__ == "__main__":
    measure = {"actions": time_actions, "clients": many_clients, "random": random_requests}
    with TemporaryDirectory() as name:
        measure[sys.argv[1]](Path(name))
