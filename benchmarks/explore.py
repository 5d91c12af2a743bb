"""Measures the command explore: the time of each action, many clients at once, and random requests.
Prints JSON rows for docs/performance.md: python -m benchmarks.explore actions|clients|random

The models are the default one, trained for one step, and one with the shape of GPT-2 (124 M), whose
weights are random. The text has 40 tokens. Every request of a round has another text, so that
nothing is read from memory, except where the action is a click on the same text.
"""

import itertools
import json
import os
import random
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import chdir, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import psutil

import headscope
from benchmarks.browser import chromium, explore, painted

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


def models(folder: Path) -> dict[str, str]:
    """The models by name, as words for `checkpoint=`."""
    import torch
    import transformers

    from headscope.conversion.tokenizer_files import tokenizer_files
    from headscope.data.tokenizer import byte

    with chdir(folder), redirect_stdout(sys.stderr):
        run = headscope.train(
            ["trainer.max_steps=1", "callbacks=plain", "~logger"]
        ).folder.resolve()
    torch.manual_seed(0)
    large = folder / "gpt2"
    transformers.GPT2LMHeadModel(transformers.GPT2Config()).save_pretrained(large)
    for name, content in tokenizer_files(byte([])).items():
        (large / name).write_text(content, "utf-8")
    return {"default": str(run), "gpt2_shape": str(large)}


def actions(address: str) -> Iterator[tuple[str, Callable[[int], Any]]]:
    """Each action of the page, as the requests that it makes in round n."""
    shown = {"layers": [0]}

    def text(n: int) -> list[int]:
        return [(n + at * 7) % 250 for at in range(TOKENS)]

    def switch(n: int) -> None:
        for zero in ([], ["L1H1"]):
            post(address, "read", tokens=text(n), zero=zero, **shown)

    yield "type a character", lambda n: post(address, "read", tokens=text(n), **shown)
    yield "select a token", lambda n: post(address, "read", tokens=text(0), position=n, **shown)
    yield "switch a head off", switch
    yield "write 20 tokens", lambda n: post(address, "write", tokens=text(n), max_new_tokens=20)
    copy = [{"head": "L1H1", "position": 3}]
    yield (
        "patch",
        lambda n: post(address, "patch", tokens=text(n), other_tokens=text(n + 1), copies=copy),
    )
    yield (
        "patch every head",
        lambda n: post(address, "patch", tokens=text(n), other_tokens=text(n + 1), every_head=True),
    )


def milliseconds(work: Callable[[int], Any]) -> float:
    """The median time of a call, after one call that is not counted."""
    times = []
    for number in range(ROUNDS + 1):
        began = time.perf_counter()
        work(number)
        times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times[1:])


def time_actions(folder: Path) -> None:
    rows: dict[str, dict[str, Any]] = {}
    for name, given in models(folder).items():
        began = time.perf_counter()
        with explore(f"checkpoint={given}") as (address, _):
            rows.setdefault("start the command", {})[name] = 1000 * (time.perf_counter() - began)
            for action, work in actions(address):
                rows.setdefault(action, {})[name] = milliseconds(work)
            with chromium() as browser:
                browser.get(address)
                painted(browser)

                def press(number: int, browser: Any = browser) -> None:
                    painted(browser, KEY, number)

                rows.setdefault("in Chromium: type until painted", {})[name] = milliseconds(press)
    for action, found in rows.items():
        print(json.dumps({"action": action} | {name: round(ms, 1) for name, ms in found.items()}))


def many_clients(folder: Path) -> None:
    """CLIENTS clients type at once for SECONDS."""
    times: list[float] = []
    failed: Counter[str] = Counter()
    with explore(f"checkpoint={models(folder)['default']}") as (address, process):
        end = time.monotonic() + SECONDS
        post(address, "read", text="warm")
        before = memory(process)

        def client(number: int) -> None:
            for turn in itertools.count():
                if time.monotonic() > end:
                    return
                began = time.perf_counter()
                try:
                    tokens = [(number + turn + at) % 250 for at in range(TOKENS)]
                    post(address, "read", tokens=tokens, layers=[0])
                except OSError as error:
                    failed[str(error)] += 1
                times.append(1000 * (time.perf_counter() - began))

        threads = [threading.Thread(target=client, args=(n,)) for n in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        times.sort()
        row = {
            "answers": len(times),
            "failures": failed.total(),
            "median_ms": round(statistics.median(times), 1),
            "slowest_ms": round(times[-1], 1),
            "mib_before": before,
            "mib_after": memory(process),
        }
    print(json.dumps(row))


def random_requests(folder: Path) -> None:
    """REQUESTS requests, most of them wrong in some way."""
    draw = random.Random(0)
    statuses: Counter[str] = Counter()
    with explore(f"checkpoint={models(folder)['default']}") as (address, process):
        halves = []
        for number in range(REQUESTS):
            name, body = random_request(draw)
            try:
                send(address, name, body)
                statuses["200"] += 1
            except HTTPError as error:
                statuses[str(error.code)] += 1
            if number + 1 in (REQUESTS // 2, REQUESTS):
                halves.append(memory(process))
        bad = sum(count for code, count in statuses.items() if code >= "5")
        row = {
            "answers": statuses["200"],
            "refused": REQUESTS - statuses["200"] - bad,
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
    None,
    True,
    -1,
    10**6,
    10**30,
    0.5,
    float("nan"),
    "",
    "../x",
    "L9H9",
    [],
    {},
    [None],
    ["L0H1"] * 2,
]
KEYS = {
    "open": ["model"],
    "read": ["model", "zero", "mean", "half", "position", "target", "also", "layers", "temperature",
             "top_k", "top_p"],
    "write": ["zero", "mean", "half", "temperature", "top_k", "top_p", "seed"],
    "patch": ["zero", "mean", "copies", "every_head"],
    "export": ["zero", "mean", "half", "position", "target", "against"],
    "other": ["model"],
}  # fmt: skip


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


def main() -> None:
    measure = {"actions": time_actions, "clients": many_clients, "random": random_requests}
    with TemporaryDirectory() as name:
        measure[sys.argv[1]](Path(name))


if __name__ == "__main__":
    main()
