"""The reading paths in CONTRIBUTING.md: the files that it lists, and all that really runs."""

import json
import re
import runpy
import sys
import threading
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
import torch
from conversion.models import saved
from running import ROOT, SMALL, measured
from tab_runs import in_process

import headscope
from headscope.data.module import TokenDataModule
from headscope.data.own_files import TextFiles
from headscope.data.store import prepare_store
from headscope.data.tokenizer import bpe
from headscope.nn import MultiHeadAttention
from headscope.show.explore import server
from headscope.show.explore.answers import Explorer
from headscope.show.explore.models import Models
from headscope.show.viewer.files import STATIC
from headscope.training.callbacks.attention import AttentionLog
from headscope.training.module import LanguageModel

PACKAGE = Path(headscope.__file__).parent
EXPLORE = PACKAGE / "show" / "explore" / "static"
ROW = r"^\| (.+) \| (\d+) and ([\d,]+) \| (\d+) and ([\d,]+) \| (`.+`) \|$"
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
ROWS = re.findall(ROW, CONTRIBUTING, re.MULTILINE)


class Trace:
    """The lines of our functions that run, from the first call of `begin` to that of `end`, in all
    threads. What an import runs does not count."""

    def __init__(self, begin: Any = None, end: Any = None) -> None:
        self.begin, self.end = (each and each.__code__ for each in (begin, end))
        self.running = not begin
        self.lines: dict[Path, set[int]] = defaultdict(set)
        self.seen: set[CodeType] = set()

    def __enter__(self) -> "Trace":
        threading.setprofile(self.called)
        sys.setprofile(self.called)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def load(self, entry: Path) -> None:
        """Adds the JavaScript modules that a page loads."""
        for module in modules(entry):
            self.lines[module] = {*range(module.read_text("utf-8").count("\n"))}

    def called(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if code is self.begin:
            self.running, self.begin = True, None
        elif code is self.end and self.running:
            self.running = False
            sys.setprofile(None)  # what follows runs at full speed
        if not self.running or event != "call" or code in self.seen or is_import(frame):
            return
        self.seen.add(code)
        file = Path(code.co_filename)
        if file.is_relative_to(PACKAGE) and code.co_name != "<module>":
            self.lines[file] |= {*range(code.co_firstlineno, last_line(code) + 1)}


def is_import(frame: FrameType | None) -> bool:
    while frame and frame.f_code.co_filename != "<frozen importlib._bootstrap>":
        frame = frame.f_back
    return frame is not None


def last_line(code: CodeType) -> int:
    """The last line of a function, those inside it included."""
    inside = [last_line(each) for each in code.co_consts if isinstance(each, CodeType)]
    return max([*inside, *(line for *_, line in code.co_lines() if line)])


def modules(entry: Path) -> set[Path]:
    """The JavaScript modules that load with one of them."""
    found = [entry]
    for module in found:
        names = re.findall(r'from "\./(?:viewer/)?(\w+\.js)"', module.read_text("utf-8"))
        files = (folder / name for name in names for folder in (module.parent, STATIC))
        found += [file for file in dict.fromkeys(files) if file.is_file() and file not in found]
    return {*found}


def trained_on(text: Path, *words: str) -> list[str]:
    return [*SMALL, f"data.path={text}", "trainer.max_steps=1", *words]


def forward_pass(text: Path) -> Trace:
    model = saved(Path("run"), "").model
    with Trace() as trace:
        model(torch.zeros(1, 8, dtype=torch.long))
    return trace


def batch_to_step(text: Path) -> Trace:
    with Trace(TokenDataModule.train_dataloader, LanguageModel.on_train_batch_end) as trace:
        headscope.train(trained_on(text, "callbacks=plain", "~logger"))
    return trace


def key_to_layer(text: Path) -> Trace:
    words = trained_on(text, "model.heads=2")
    headscope.train(words)  # encodes the text
    with Trace(end=MultiHeadAttention.__init__) as trace, pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["train.py", *words])
        runpy.run_path(str(ROOT / "scripts" / "train.py"), run_name="__main__")
    return trace


def text_to_batch(text: Path) -> Trace:
    with Trace() as trace:
        store = prepare_store(TextFiles(path=str(text)), partial(bpe, vocab_size=320))
        data = TokenDataModule(store, block_size=8, batch_size=2)
        next(iter(data.train_batches()))
    return trace


def metric_to_tab(text: Path) -> Trace:
    with Trace(AttentionLog.log_heads, LanguageModel.training_step) as trace:
        headscope.train(trained_on(text))
    ask = in_process(Path("outputs"))
    trace.running = True
    with trace:
        run, *_ = ask("runs").json["runs"]
        history = ask("history", run=run["name"], text=run["texts"][0]).json
        ask("part", key=history["steps"][0]["parts"][0])
    trace.load(STATIC / "tab.js")
    return trace


def key_press(text: Path) -> Trace:
    explorer = Explorer(Models(str(saved(Path("run"), "").path), None, "cpu"))
    measured(explorer.models.get("this"))  # in a thread of its own
    with Trace() as trace:
        trace.running = False
        _, url = server.serve(explorer, host="127.0.0.1", port=0)
        page = HTTPConnection(url.split("/")[2])
        for typed in ("We, the peopl", "We, the people"):
            request = json.dumps({"text": typed, "layers": [0]})
            page.request("POST", "/v1/read", request, {"Content-Type": "application/json"})
            assert page.getresponse().read()
            trace.running = True  # from the second key press on
    trace.load(EXPLORE / "explore.js")
    return trace


PATHS: list[Callable[[Path], Trace]] = [
    forward_pass,
    batch_to_step,
    key_to_layer,
    text_to_batch,
    metric_to_tab,
    key_press,
]


@pytest.mark.parametrize(("path", "row"), [*zip(PATHS, ROWS, strict=True)])
def test_a_reading_path_is_as_short_as_contributing_says(
    path, row, speeches, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    name, listed_files, listed_lines, files, lines, names = row
    listed = [
        PACKAGE / (each if ".js" in each else f"{each}.py")
        for each in re.findall("`([^` ]+)`", names)
    ]
    assert len(listed) == int(listed_files)
    size = sum(file.read_text("utf-8").count("\n") for file in listed)
    assert size <= int(listed_lines.replace(",", "")), f"{size} lines: raise the number"
    ran = path(speeches).lines
    lines_run = sum(map(len, ran.values()))
    found = f"{name}: {len(ran)} and {lines_run:,}"
    assert len(ran) <= int(files), found
    assert lines_run <= int(lines.replace(",", "")), found
