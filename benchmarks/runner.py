"""Runs a benchmark suite, and writes its results as JSON, as Markdown tables and as a chart.

A suite is a module with a function `measure`. Its arguments are a `Request` and the keys of the
suite's file in conf/suite/, and it returns a `Result`. A suite compares several sides, such as
headscope and nanoGPT.
"""

import shlex
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from lightning.pytorch import Callback
from rich.console import Console

from benchmarks.table import Row, bar_chart, line_chart, number, table
from headscope.config.parse import Positive, parse
from headscope.config.training import TrainConfig
from headscope.errors import UserError
from headscope.files import json_text, replacing, write_atomically
from headscope.trained import checkpoint
from headscope.training.build import Run, build
from headscope.training.run import device_name
from headscope.training.run_folder import shown
from headscope.training.timer import wait_for_gpu

Figures = dict[str, Any]
Measured = dict[str, list[Figures]]  # of each side, with one entry for each round
Shape = tuple[Positive, Positive, Positive]

WITHOUT_RUN = ("attention", "sampling", "encoding", "viewer")
"""The suites that measure no training run, so they take only suite.*."""


@dataclass(frozen=True)
class Request:
    """The configuration of a benchmark, from the command line. `words` are the overrides of the
    command line, without suite and suite.*. `compose` composes another configuration from conf/."""

    run: TrainConfig
    words: Sequence[str]
    experiment: str | None
    compose: Callable[..., Any]

    @property
    def device(self) -> torch.device:
        name = self.run.trainer.accelerator
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


def suite(name: str, request: Request | None) -> Callable[..., Result]:
    """The function that measures a suite. Its arguments are the keys of the suite."""
    return partial(import_module(f"benchmarks.{name}").measure, request)


def run_suite(name: str, keys: Figures, request: Request, folder: Path, words: list[str]) -> None:
    """Run the suite `name` with `keys`, print its tables, and write its results to `folder`: as
    JSON, as tables (.md) and as a chart (.png). They show `words`, those of the command line.

    Raises UserError when a key is wrong or not used, or when it is an empty list.
    """
    for key, value in keys.items():
        if value == []:
            raise UserError(f"suite.{key}=[] is too small: give at least one")
    if name in WITHOUT_RUN and request.words:
        raise UserError(f"{request.words[0]}: suite={name} takes only suite.*; remove this key")
    result = parse(suite(name, request), keys, "suite")
    command = shlex.join(["python", "scripts/benchmark.py", *words])
    place = f"{device_name(request.device)}, PyTorch {torch.__version__}"
    groups = [{"title": title, "rows": rows} for title, rows in result.groups.items()]
    about = {"suite": name, "command": command, "place": place, "note": result.note}
    tables = [f"{title}:\n\n{table(rows)}" for title, rows in result.groups.items()]
    text = "\n\n".join([f"```\n{command}\n```", *tables, result.note]) + "\n"
    print(text, end="")
    title = f"{result.title}\n{place}"
    if result.bar:
        chart = bar_chart(title, result.groups, result.axis, result.bar)
    else:
        [rows] = result.groups.values()
        chart = line_chart(title, rows, result.axis, result.target)
    write_atomically(folder / "benchmark.json", json_text({**about, "groups": groups}, indent=2))
    write_atomically(folder / "benchmark.md", text)
    with replacing(folder / "benchmark.png") as file:
        chart.savefig(file)
    print(f"Written: {shown(folder)}/benchmark.json, .md and .png", file=sys.stderr)


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


def seconds_of(call: Callable[[], object]) -> float:
    """Seconds that one call takes, until a GPU has finished its work."""
    wait_for_gpu()
    started = time.perf_counter()
    call()
    wait_for_gpu()
    return time.perf_counter() - started


def train_in_temporary_folder(config: TrainConfig, *callbacks: Callback) -> Run:
    """Train with `config`, without the evaluation at the end."""
    with TemporaryDirectory() as folder:
        run = build(config, Path(folder), Console(quiet=True))
        run.trainer.callbacks.extend(callbacks)
        run.trainer.fit(run.module, datamodule=run.data)
    return run
