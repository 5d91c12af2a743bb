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
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from lightning.pytorch import Callback

from benchmarks.schemas import SUITES
from benchmarks.table import Row, bar_chart, line_chart, number, table
from headscope.cli.bare_loop import built, synchronize
from headscope.config.training import TrainConfig
from headscope.errors import UserError, ran_out_of_memory
from headscope.files import json_text, read_json, replacing, write_atomically
from headscope.trained import checkpoint
from headscope.training.build import Run
from headscope.training.run import device_name

Figures = dict[str, Any]
Measured = dict[str, list[Figures]]  # of each side, with one entry for each round

OUTPUTS = Path("outputs")  # created if it does not exist
WITHOUT_RUN = ("attention", "sampling", "encoding", "viewer")
"""The suites that measure no training run, so they take only suite.*."""


@dataclass(frozen=True)
class Request:
    """The configuration of a benchmark, from the command line. `words` are the overrides of the
    command line, without suite, suite.* and output. `compose` composes another configuration from
    conf/."""

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
    """The results of a suite. `groups` maps the titles of tables to rows, and `note` explains
    them. `title` is the title of the chart. It shows the key `bar` of the rows as bars. Without
    it, the chart shows the `marks` of the rows as lines, and the loss `target`. `axis` is the name
    of the axis of these values."""

    title: str
    groups: Mapping[str, Sequence[Row]]
    note: str
    axis: str
    bar: str | None = None
    target: float | None = None


def run_suite(name: str, request: Request, output: Path, command: Sequence[str]) -> None:
    """Run a suite, print its tables, and write its results to the JSON file `output`, and the
    tables (.md) and the chart (.png) next to it. The results show `command`, the words of the
    command line.

    Raises UserError when a key is not used or an empty list, when memory runs out, or when a file
    exists that is not a result of a benchmark.
    """
    markdown, picture = check_output(output)
    for key, value in vars(request.suite).items():
        if value == []:
            raise UserError(f"suite.{key}=[] is too small: give at least one")
    if name in WITHOUT_RUN and request.words:
        raise UserError(f"{request.words[0]}: suite={name} takes only suite.*; remove this key")
    try:
        result: Result = import_module(f"benchmarks.{name}").measure(request)
    except (RuntimeError, MemoryError) as error:
        if not (ran_out_of_memory(error) or isinstance(error, BrokenProcessPool)):
            raise
        raise UserError("memory ran out: choose smaller suite.*, model.* or trainer.*") from error
    shown = shlex.join(["python", "scripts/benchmark.py", *command])
    place = f"{device_name(request.device)}, PyTorch {torch.__version__}"
    groups = [{"title": title, "rows": rows} for title, rows in result.groups.items()]
    figures = {"suite": name, "command": shown, "place": place, "note": result.note}
    tables = [f"{title}:\n\n{table(rows)}" for title, rows in result.groups.items()]
    text = "\n\n".join([f"```\n{shown}\n```", *tables, result.note]) + "\n"
    print(text, end="")
    output.parent.mkdir(exist_ok=True)
    write_atomically(output, json_text({**figures, "groups": groups}, indent=2) + "\n")
    write_atomically(markdown, text)
    title = f"{result.title}\n{place}"
    if result.bar:
        chart = bar_chart(title, result.groups, result.axis, result.bar)
    else:
        [rows] = result.groups.values()
        chart = line_chart(title, rows, result.axis, result.target)
    with replacing(picture) as file:
        chart.savefig(file)
    print(f"Written: {output}, {markdown} and {picture}", file=sys.stderr)


def check_output(output: Path) -> tuple[Path, Path]:
    """Returns the paths of the tables (.md) and of the chart (.png) that belong to `output`."""
    if output.suffix != ".json" or not (output.parent.is_dir() or output.parent == OUTPUTS):
        raise UserError(f"output={output} must be a .json file in a folder that exists")
    earlier = read_json(output)
    others = output.with_suffix(".md"), output.with_suffix(".png")
    for file in (output, *others):
        if file.exists() and not (isinstance(earlier, dict) and earlier.get("suite") in [*SUITES]):
            raise UserError(
                f"output={output}: {file} exists and is not a result of a benchmark: choose "
                "another name, or move the file away"
            )
    return others


def alternate(
    sides: Mapping[str, Callable[[], Figures]], rounds: int = 1, earlier: Measured | None = None
) -> Measured:
    """Call the function of every side once in each round. The order is reversed in every second
    round. So all sides are affected equally if the machine becomes slower over time. `earlier` are
    the results of earlier rounds."""
    measured: Measured = earlier or {name: [] for name in sides}
    for _ in range(rounds):
        done = len(next(iter(measured.values())))
        for name in reversed([*sides]) if done % 2 else sides:
            measured[name].append(sides[name]())
            found = measured[name][-1].items()
            line = ", ".join(f"{key} {number(value)}" for key, value in found if key != "marks")
            print(f"round {done + 1}: {name}: {line}", file=sys.stderr)
    return measured


def compared(
    sides: Mapping[str, Callable[[], Figures]], rounds: int, *, ratio_of: str, reference: str
) -> list[dict[str, Any]]:
    """The rows of `rounds` rounds (see `alternate` and `summarize`)."""
    return summarize(alternate(sides, rounds), ratio_of=ratio_of, reference=reference)


def summarize(measured: Measured, *, ratio_of: str, reference: str) -> list[dict[str, Any]]:
    """One row for each side, with the median, minimum and maximum of every measured number over the
    rounds. The number `ratio_of` also has the median of its ratio to the side `reference` in the
    same round."""
    rows = []
    for name, rounds in measured.items():
        row: dict[str, Any] = {"side": name}
        for key in rounds[0]:
            values = [figures[key] for figures in rounds]
            row[key] = {"median": statistics.median(values), "min": min(values), "max": max(values)}
        pairs = zip(rounds, measured[reference], strict=True)
        row[ratio_of]["ratio"] = statistics.median(a[ratio_of] / b[ratio_of] for a, b in pairs)
        rows.append(row)
    return rows


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
    ends = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # Ctrl-C reaches it, too
    with ProcessPoolExecutor(1, context, initializer=ends) as pool:
        return pool.submit(function, argument).result()


def process_mib(field: str) -> float:
    """The value of `field` in /proc/self/status (man 5 proc), in MiB. VmRSS is the resident memory,
    and VmHWM is its peak. Returns NaN on systems other than Linux."""
    status = Path("/proc/self/status")
    lines = status.read_text(encoding="utf-8") if status.exists() else ""
    found = re.search(rf"^{field}:\s+(\d+) kB", lines, re.M)
    return int(found[1]) / 2**10 if found else math.nan


def train_in_temporary_folder(config: TrainConfig, *callbacks: Callback) -> Run:
    """Train with `config`, without the evaluation at the end."""
    with TemporaryDirectory() as folder:
        run = built(config, Path(folder))
        run.trainer.callbacks.extend(callbacks)
        run.trainer.fit(run.module, datamodule=run.data)
    return run
