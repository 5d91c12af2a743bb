"""Runs with attention data for the tests of the tab, and the real TensorBoard that serves them."""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

import numpy as np
from running import until
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.plugins.base_plugin import TBContext
from torch.utils.tensorboard import SummaryWriter
from viewer_data import causal, snapshot
from werkzeug.test import Client

from headscope.show.tensorboard.plugin import AttentionPlugin
from headscope.training.loggers import add_snapshot

TEXT = "attention/speech"
ROUTES = "data/plugin/headscope"
STARTED = re.compile(r"http://\S+:\d+/")


def made_up_scores(step: int, seed: int = 0) -> Any:
    """A score for each of two layers of two heads. It depends on step and seed."""
    return np.random.default_rng([seed, step]).random((2, 2))


def made_up_parts(
    step: int, *, seed: int = 0, labels: Sequence[str] = ("a", "b", "c", "d", "e", "f")
) -> list[bytes]:
    """The parts of a snapshot of random weights. The last head has the largest ratio."""
    random = np.random.default_rng([seed, step])
    weights = causal(random.random((2, 2, len(labels), len(labels))) + 1e-6)
    named = {"names": ["mixed", "previous-token"] * 2, "ratios": [0, 0.25, 0.5, 0.75]}
    scores = made_up_scores(step, seed).flatten().tolist()
    size = len(labels) + 3
    return snapshot(weights, labels, step, text_tokens=size, scores=scores, **named).blobs()


def write_run(
    folder: Path,
    steps: Sequence[int] = (0,),
    *,
    snapshots: Sequence[list[bytes]] = (),
    text: str = TEXT,
    **others: Any,
) -> None:
    """A run with a loss and a snapshot at each step, of `made_up_parts` unless others are given."""
    with SummaryWriter(str(folder)) as writer:
        given = snapshots or [made_up_parts(step, **others) for step in steps]
        for step, parts in zip(steps, given, strict=True):
            writer.add_scalar("train/loss", 4 / (1 + step), step)
            add_snapshot(writer, text, parts, step)


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        assert self.headers["Content-Type"] == "application/json"
        assert self.headers["X-Content-Type-Options"] == "nosniff"
        return json.loads(self.body)


@dataclass
class Board:
    """A TensorBoard process. `lines` are those that it printed on stderr."""

    address: str
    lines: list[str]

    def get(self, path: str, **parameters: Any) -> Answer:
        query = f"?{urlencode(parameters)}" if parameters else ""
        try:
            with urlopen(f"{self.address}{path}{query}") as response:
                return Answer(response.status, dict(response.headers), response.read())
        except HTTPError as error:
            return Answer(error.code, dict(error.headers), error.read())

    def ask(self, route: str, **parameters: Any) -> Answer:
        """The answer of a route of the plugin."""
        return self.get(f"{ROUTES}/{route}", **parameters)

    def runs(self) -> dict[str, list[str]]:
        return {run["name"]: run["texts"] for run in self.ask("runs").json["runs"]}

    def steps(self, run: str, text: str = TEXT) -> list[int]:
        """The steps in the history of a run. Empty if there is none."""
        found = self.ask("history", run=run, text=text).json
        return [step["step"] for step in found.get("steps", [])]


@contextmanager
def board(logdir: Path, *, load_fast: bool, path: Path | None = None) -> Iterator[Board]:
    """A TensorBoard process on a free port, which is stopped at the end. It looks for new data once
    a second. It finds Python modules also in the folder `path`."""
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(logdir), "--port", "0"]
    command += ["--load_fast", str(load_fast).lower(), "--reload_interval", "1"]
    folders = [*filter(None, [path and str(path), os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
    with subprocess.Popen(command, stderr=PIPE, text=True, env=environment) as process:
        lines: list[str] = []
        reader = threading.Thread(target=lambda: lines.extend(process.stderr or ()))
        reader.start()
        try:
            found = until(lambda: STARTED.search("".join(lines)) or process.poll(), "TensorBoard")
            assert isinstance(found, re.Match), "".join(lines)
            yield Board(found[0], lines)
        finally:
            process.terminate()
            reader.join()


def in_process(logdir: Path) -> Callable[..., Answer]:
    """ask(route, parameters) asks the plugin without a server."""
    multiplexer = EventMultiplexer().AddRunsFromDirectory(str(logdir))
    multiplexer.Reload()
    provider = MultiplexerDataProvider(multiplexer, str(logdir))
    plugin = AttentionPlugin(TBContext(data_provider=provider))

    def ask(route: str, **parameters: str) -> Answer:
        found = Client(plugin.get_plugin_apps()[f"/{route}"]).get(query_string=parameters)
        return Answer(found.status_code, dict(found.headers), found.data)

    return ask
