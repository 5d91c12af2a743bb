"""Runs a benchmark suite, and writes its results as JSON, as Markdown tables and as a chart.

A suite is a module with a function `measure`, which takes a `Request` and returns a `Result`. A
suite compares several sides, such as headscope and nanoGPT.
"""

import math
import multiprocessing
import re
import shlex
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, is_dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback

from headscope import checkpoint
from headscope.benchmarks.show import Panel, Row, chart, table
from headscope.config import SCHEMAS
from headscope.config.training import TrainConfig
from headscope.errors import UserError, ran_out_of_memory
from headscope.files import json_text, read_json, replacing, write_atomically
from headscope.stop import on_stop, temporary_folder
from headscope.training.bare_loop import built
from headscope.training.build import Run
from headscope.training.callbacks.clock import callbacks_of
from headscope.training.flops import synchronize
from headscope.training.run import device_name

Figures = dict[str, float]
Measured = dict[str, list[Figures]]
"""The measured numbers of each side: a list with one entry for each round."""


@dataclass(frozen=True)
class Request:
    """The configuration of a benchmark, from the command line. `words` are the overrides of the
    command line. `compose` is a function that composes another configuration from conf/."""

    run: TrainConfig
    suite: Any
    words: Sequence[str]
    experiment: str | None
    compose: Callable[..., Any]

    @property
    def device(self) -> torch.device:
        name = getattr(self.suite, "device", self.run.trainer.accelerator)
        return checkpoint.pick_device("cuda" if name == "gpu" else name)


@dataclass(frozen=True)
class Result:
    """The results of a suite. `groups` maps the title of each table to its rows. `columns` maps the
    keys of the rows to headings, and `note` explains the columns. `title` and `panels` are the
    title and the parts of the chart."""

    groups: Mapping[str, Sequence[Row]]
    columns: Mapping[str, str]
    note: str
    title: str
    panels: Sequence[Panel]


def run_suite(name: str, request: Request, output: Path) -> None:
    """Run a suite, print its tables, and write its results to the JSON file `output`. Write the
    tables (.md) and the chart (.png) to files of the same name.

    Raises UserError when a number in `suite` is not positive, when memory runs out, or when a file
    exists that is not a result of a benchmark.
    """
    markdown, picture = check_output(output)
    check_positive(request.suite)
    try:
        result: Result = import_module(f"headscope.benchmarks.{name}").measure(request)
    except (RuntimeError, MemoryError) as error:
        if not (ran_out_of_memory(error) or isinstance(error, BrokenProcessPool)):
            raise
        raise UserError("memory ran out: choose smaller suite.*, model.* or trainer.*") from error
    words = [word for word in request.words if not word.startswith("output=")]
    command = shlex.join(["python", "scripts/benchmark.py", *words])
    place = f"{device_name(request.device)}, PyTorch {torch.__version__}"
    figures = {
        "suite": name,
        "command": command,
        "place": place,
        "note": result.note,
        "groups": [{"title": title, "rows": rows} for title, rows in result.groups.items()],
    }
    tables = (f"{title}:\n\n{table(of, result.columns)}" for title, of in result.groups.items())
    text = "\n\n".join([f"```\n{command}\n```", *tables, result.note]) + "\n"
    print(text, end="")
    write_atomically(output, json_text(figures, indent=2) + "\n")
    write_atomically(markdown, text)
    with replacing(picture) as file:
        chart(f"{result.title}\n{place}", result.panels).savefig(file)
    print(f"Written: {output}, {markdown} and {picture}", file=sys.stderr)


def check_output(output: Path) -> tuple[Path, Path]:
    """Returns the paths of the tables (.md) and of the chart (.png) that belong to `output`."""
    if output.suffix != ".json" or not output.parent.is_dir():
        raise UserError(f"output={output} must be a .json file in a folder that exists")
    earlier = read_json(output)
    ours = isinstance(earlier, dict) and earlier.get("suite") in list(SCHEMAS["suite"])
    others = output.with_suffix(".md"), output.with_suffix(".png")
    for file in (output, *others):
        if file.exists() and not ours:
            raise UserError(
                f"output={output}: {file} exists and is not a result of a benchmark: choose "
                "another name, or move the file away"
            )
    return others


def check_positive(config: Any, key: str = "suite") -> None:
    for name, value in vars(config).items():
        if is_dataclass(value):
            check_positive(value, f"{key}.{name}")
        elif type(value) is int and value < 1:
            raise UserError(f"{key}.{name}={value} must be at least 1")


def alternate(sides: Mapping[str, Callable[[], Figures]], rounds: int = 1) -> Measured:
    """Call the function of every side once in each round."""
    measured: Measured = {}
    for _ in range(rounds):
        take_turns(sides, measured)
    return measured


def take_turns(sides: Mapping[str, Callable[[], Figures]], measured: Measured) -> None:
    """Run one round: call the function of every side once. The order is reversed in every second
    round. So all sides are affected equally if the machine becomes slower over time."""
    done = sum(map(len, measured.values())) // len(sides)
    for name in reversed([*sides]) if done % 2 else sides:
        figures = sides[name]()
        measured.setdefault(name, []).append(figures)
        line = ", ".join(f"{key} {value:,.5g}" for key, value in figures.items())
        print(f"round {done + 1}: {name}: {line}", file=sys.stderr)


def summarize(measured: Measured, *, reference: str) -> list[dict[str, Any]]:
    """One row for each side, with the median, minimum and maximum of every measured number over the
    rounds. `ratio` has the same statistics for the ratio to the side `reference` in the same
    round."""
    rows = []
    for name, rounds in measured.items():
        row: dict[str, Any] = {"side": name}
        for key in rounds[0]:
            pairs = [(a[key], b[key]) for a, b in zip(rounds, measured[reference], strict=True)]
            ratios = spread([a / b if b else math.nan for a, b in pairs])
            row[key] = {**spread([a for a, _ in pairs]), "ratio": ratios}
        rows.append(row)
    return rows


def spread(values: Sequence[float]) -> Figures:
    found = {"median": statistics.median(values), "min": min(values), "max": max(values)}
    return {key: round(value, 6) for key, value in found.items()}


def require_equal_losses(losses: Figures, reference: str, *, tolerance: float) -> None:
    """Raises RuntimeError when the losses differ, because the sides then did different work."""
    for name, loss in losses.items():
        if not math.isclose(loss, losses[reference], rel_tol=tolerance):
            raise RuntimeError(f"{name} began at loss {loss}, {reference} at {losses[reference]}")


def seconds_of(call: Callable[[], object], device: torch.device) -> float:
    """Seconds that one call takes, until the device has finished its work."""
    synchronize(device)
    started = time.perf_counter()
    call()
    synchronize(device)
    return time.perf_counter() - started


def in_fresh_process(function: Callable[[Any], Any], argument: Any) -> Any:
    """Call a function in a new process, which has only imported the module of the function."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([function.__module__])
    # Ctrl-C also reaches the new process. It ignores the signal, and the parent process ends it.
    ignore = partial(signal.signal, signal.SIGINT, signal.SIG_IGN)
    with on_stop(kill_children), ProcessPoolExecutor(1, context, initializer=ignore) as pool:
        return pool.submit(function, argument).result()


def kill_children() -> None:
    for child in multiprocessing.active_children():
        child.kill()


def process_mib(field: str, process: int | None = None) -> float:
    """The value of `field` in /proc/<process>/status (man 5 proc), in MiB. Without `process`, of
    this process. VmRSS is the resident memory,
    VmHWM is its peak, and RssAnon is the resident memory without pages of files. Returns NaN on
    systems other than Linux."""
    status = Path(f"/proc/{process or 'self'}/status")
    try:
        lines = status.read_text(encoding="utf-8")
    except OSError:  # not Linux, or the process has ended
        lines = ""
    found = re.search(rf"^{field}:\s+(\d+) kB", lines, re.M)
    return int(found[1]) / 2**10 if found else math.nan


class PeakMemory:
    """The largest memory in MiB inside the `with` block, without file pages, measured a hundred
    times per second: of this process, or of the largest of `process` and the processes that it has
    started."""

    def __init__(self, process: int | None = None) -> None:
        self.process = process
        self.peak = 0.0

    def __enter__(self) -> "PeakMemory":
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.ended.set()
        self.thread.join()

    def watch(self) -> None:
        while not self.ended.wait(0.01):
            started = started_by(self.process) if self.process else []
            for process in (self.process, *started):
                self.peak = max(self.peak, process_mib("RssAnon", process))


def started_by(process: int) -> list[int]:
    """The processes that `process` has started, on Linux."""
    children = Path(f"/proc/{process}/task/{process}/children")
    try:
        return [int(number) for number in children.read_text(encoding="utf-8").split()]
    except OSError:  # not Linux, or the process has ended
        return []


def trained(config: TrainConfig, *callbacks: Callback, validate_all: bool = False) -> Run:
    """Train with `config` in a temporary folder, without the evaluation at the end. With
    `validate_all`, every validation during training uses the whole validation split."""
    with temporary_folder() as folder:
        run = built(config, folder)
        if validate_all:
            run.data.validation_every = 1
        callbacks_of(run.trainer).extend(callbacks)
        run.trainer.fit(run.module, datamodule=run.data)
    return run
