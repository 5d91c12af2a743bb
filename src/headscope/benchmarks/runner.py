"""Runs a suite: its sides take turns, and its figures become a JSON file, tables and a chart.

A suite is a module with a function `measure`, which takes a `Request` and returns a `Result`.
"""

import math
import multiprocessing
import shlex
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, is_dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback
from rich.console import Console

from headscope import checkpoint
from headscope.benchmarks.show import Panel, Row, chart, table
from headscope.config import SCHEMAS
from headscope.config.training import TrainConfig
from headscope.errors import UserError
from headscope.files import json_text, read_json, replacing, write_atomically
from headscope.stop import on_stop
from headscope.training.bare_loop import built, wait_for
from headscope.training.build import Run
from headscope.training.callbacks.clock import callbacks_of

Figures = dict[str, float]
Measured = dict[str, list[Figures]]
"""The figures of each side, round by round."""


@dataclass(frozen=True)
class Request:
    """What the command line asks for: `words` are its overrides, `choices` the chosen options, and
    `compose` returns another configuration of conf/ as an instance of a schema."""

    run: TrainConfig
    suite: Any
    words: Sequence[str]
    choices: Mapping[str, Any]
    compose: Callable[..., Any]
    console: Console

    @property
    def device(self) -> torch.device:
        name = getattr(self.suite, "device", self.run.trainer.accelerator)
        return checkpoint.pick_device("cuda" if name == "gpu" else name)

    def alternate(self, sides: Mapping[str, Callable[[], Figures]], rounds: int = 1) -> Measured:
        measured: Measured = {}
        for number in range(rounds):
            self.take_turns(sides, measured, label=f"round {number + 1} of {rounds}")
        return measured

    def take_turns(
        self, sides: Mapping[str, Callable[[], Figures]], measured: Measured, *, label: str
    ) -> None:
        """One round, so that a machine that slows down slows all sides alike. Every second round
        runs in reverse order."""
        odd = sum(map(len, measured.values())) // len(sides) % 2
        for name in reversed([*sides]) if odd else sides:
            figures = sides[name]()
            measured.setdefault(name, []).append(figures)
            line = ", ".join(f"{key} {value:,.5g}" for key, value in figures.items())
            self.console.print(f"{label}: {name}: {line}", markup=False, soft_wrap=True)


@dataclass(frozen=True)
class Result:
    """`groups` are rows by title, each group a table of the figures `columns`, which `note`
    explains. The other `figures` are only in the JSON file."""

    groups: Mapping[str, Sequence[Row]]
    columns: Sequence[str]
    note: str
    title: str
    panels: Sequence[Panel]
    panel_columns: int = 1
    figures: Mapping[str, Any] = field(default_factory=dict)


def run_suite(name: str, request: Request, output: Path) -> None:
    """Measure, print the tables, write the figures to `output` and the chart to a .png beside it.

    Raises UserError when a number of the suite is out of range, or a file that this function did
    not write would be replaced.
    """
    check_output(output)
    check_positive(request.suite)
    result: Result = import_module(f"headscope.benchmarks.{name}").measure(request)
    place = f"{device_name(request.device)}, PyTorch {torch.__version__}"
    figures = {
        "suite": name,
        "command": shlex.join(["python", "scripts/benchmark.py", *request.words]),
        "place": place,
        "settings": asdict(request.suite),
        **result.figures,
        "groups": [{"title": title, "rows": rows} for title, rows in result.groups.items()],
    }
    text = json_text(figures, indent=2) + "\n"
    console = Console(highlight=False, soft_wrap=True, width=130)
    for title, rows in result.groups.items():
        console.print(table(rows, result.columns, title), "")
    console.print(result.note, markup=False)
    write_atomically(output, text)
    with replacing(output.with_suffix(".png")) as file:
        chart(f"{result.title}\n{place}", result.panels, result.panel_columns).savefig(file)
    print(f"{output} and {output.with_suffix('.png')}", file=sys.stderr)


def check_output(output: Path) -> None:
    if not output.parent.is_dir():
        raise UserError(f"output={output}: there is no folder {output.parent}; create it first")
    if output.is_dir() or output.suffix == ".png":
        raise UserError(f"output={output} is a folder or a picture: name a .json file")
    earlier = read_json(output)
    ours = isinstance(earlier, dict) and earlier.get("suite") in list(SCHEMAS["suite"])
    for file in (output, output.with_suffix(".png")):
        if file.exists() and not ours:
            raise UserError(
                f"output={output}: {file} exists and is no result of a benchmark: choose another "
                "name, or move the file away"
            )


def check_positive(config: Any, key: str = "suite") -> None:
    for name, value in vars(config).items():
        if is_dataclass(value):
            check_positive(value, f"{key}.{name}")
        elif type(value) is int and value < 1:
            raise UserError(f"{key}.{name}={value} must be at least 1")


def summarize(measured: Measured, *, reference: str) -> list[dict[str, Any]]:
    """A row for each side: the median, min and max of each figure, and of its `ratio` to the same
    figure of the side `reference` in the same round."""
    rows = []
    for name, turns in measured.items():
        row: dict[str, Any] = {"side": name}
        for key in turns[0]:
            pairs = [(a[key], b[key]) for a, b in zip(turns, measured[reference], strict=True)]
            ratios = spread([a / b if b else math.nan for a, b in pairs])
            row[key] = {**spread([a for a, _ in pairs]), "ratio": ratios}
        rows.append(row)
    return rows


def require_equal_losses(losses: Figures, reference: str, *, tolerance: float) -> None:
    """Raises RuntimeError when the sides did not do the same work."""
    for name, loss in losses.items():
        if not math.isclose(loss, losses[reference], rel_tol=tolerance):
            raise RuntimeError(f"{name} began at loss {loss}, {reference} at {losses[reference]}")


def spread(values: Sequence[float]) -> Figures:
    found = {"median": statistics.median(values), "min": min(values), "max": max(values)}
    return {key: round(value, 6) for key, value in found.items()}


def seconds_of(call: Callable[[], object], device: torch.device) -> float:
    """Seconds of one call, until the device has finished its work."""
    wait_for(device)
    started = time.perf_counter()
    call()
    wait_for(device)
    return time.perf_counter() - started


@contextmanager
def fresh_process(module: str) -> Iterator[ProcessPoolExecutor]:
    """One process that has imported `module` and done nothing else, until the context ends."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([module])
    # Ctrl-C reaches all processes of a terminal; the first one ends this one.
    ignore = partial(signal.signal, signal.SIGINT, signal.SIG_IGN)
    with on_stop(kill_children), ProcessPoolExecutor(1, context, initializer=ignore) as pool:
        yield pool


def kill_children() -> None:
    for child in multiprocessing.active_children():
        child.kill()


def trained(config: TrainConfig, *callbacks: Callback, validate_all: bool = False) -> Run:
    """A run as scripts/train.py makes it, in a temporary folder; the final validation is left out.
    With `validate_all` every validation reads the whole split."""
    with (
        tempfile.TemporaryDirectory() as folder,
        on_stop(partial(shutil.rmtree, folder, ignore_errors=True)),
    ):
        run = built(config, folder)
        if validate_all:
            run.data.validation_every = 1
        callbacks_of(run.trainer).extend(callbacks)
        run.trainer.fit(run.module, datamodule=run.data)
    return run


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type.upper()}, threads: {torch.get_num_threads()}"
