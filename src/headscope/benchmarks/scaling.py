"""How the cost of a training step grows: with context, width, depth, vocabulary, and the corpus.

One size at a time takes several values, the others stay as they are. Every step trains on equally
many tokens, whatever the context, so a longer one means fewer sequences.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from headscope.benchmarks.fresh import Measured, Plan, Steps, measure_apart
from headscope.benchmarks.timing import in_turn, machine, spread
from headscope.checkpoint import build_model
from headscope.data.batches import Batch, TrainingBatches
from headscope.data.store import token_dtype
from headscope.errors import UserError
from headscope.training.bare_loop import wait_for
from headscope.training.process import prepare_process

CORPUS = "corpus"
KEYS = {
    "context": "contexts",
    "width": "widths",
    "depth": "layers",
    "vocabulary": "vocabularies",
    CORPUS: "corpora",
}
"""The axes, and where their values stand in `suite`."""


@dataclass(frozen=True)
class Sweeps:
    """The values of each axis, in order. Raises UserError when they are no ladder to climb."""

    values: dict[str, Sequence[int]]

    def __post_init__(self) -> None:
        for axis, values in self.values.items():
            rising = all(a < b for a, b in pairwise(values))
            if len(values) < 2 or values[0] < 1 or not rising:
                raise UserError(
                    f"suite.{KEYS[axis]}={list(values)} must be two numbers or more, rising, each "
                    "at least 1"
                )


def at(plan: Plan, axis: str, value: int) -> Plan:
    """`plan` with another value of one axis. The width of a head stays, so there are more of them
    in a wider model; tokens per step stay.

    Raises UserError when the tokens of a step are no whole number of contexts.
    """
    model = plan.model
    if axis == "vocabulary":
        return replace(plan, vocab_size=value)
    if axis == "depth":
        return replace(plan, model=replace(model, layers=value))
    if axis == "width":
        heads = max(1, model.heads * value // model.embed_dim)
        return replace(plan, model=replace(model, embed_dim=value, heads=heads))
    assert axis == "context"
    tokens = plan.batch_size * model.block_size
    return replace(plan, model=replace(model, block_size=value), batch_size=whole(tokens, value))


def whole(tokens: int, context: int) -> int:
    """How many sequences of `context` tokens these are. Raises UserError when there is a rest."""
    if tokens < context or tokens % context:
        raise UserError(
            f"suite.tokens_per_step={tokens} is no multiple of a context of {context} tokens"
        )
    return tokens // context


def measure_growth(plan: Plan, sweeps: Sweeps, *, console: Console) -> dict[str, Any]:
    """Milliseconds of a step, its peak memory, and the exponents that they grow with, along every
    axis from what `plan` describes. On the corpus only the time is measured: of a step with the
    fetching of its batch."""
    plans = {
        axis: [at(plan, axis, value) for value in values]
        for axis, values in sweeps.values.items()
        if axis != CORPUS
    }
    for this in (this for of_axis in plans.values() for this in of_axis):
        with torch.device("meta"):  # a size that does not fit is told before any is measured
            build_model(this.model, vocab_size=this.vocab_size)
    tell: Callable[[str], None] = console.print
    times = time_corpora(plan, sweeps.values[CORPUS], tell=tell)
    known: dict[str, Measured] = {}  # the plan itself stands on every axis
    axes: dict[str, Any] = {}
    for axis, of_axis in plans.items():
        found = []
        for value, this in zip(sweeps.values[axis], of_axis, strict=True):
            key = repr(this)
            known[key] = known[key] if key in known else measure_apart(this)
            found.append(known[key])
            ms = found[-1].milliseconds["median"]
            tell(f"{axis} {value:,}: {ms:,.1f} ms, {found[-1].peak_mib:,.0f} MiB")
        axes[axis] = grown(
            sweeps.values[axis],
            milliseconds=[each.milliseconds for each in found],
            mib=[each.peak_mib for each in found],
        )
    axes[CORPUS] = grown(sweeps.values[CORPUS], milliseconds=times)
    return {
        **machine(plan.device),
        "precision": plan.precision,
        "base": {
            "context": plan.model.block_size,
            "width": plan.model.embed_dim,
            "depth": plan.model.layers,
            "vocabulary": plan.vocab_size,
        },
        "heads": plan.model.heads,
        "tokens_per_step": plan.batch_size * plan.model.block_size,
        "rounds": plan.rounds,
        "axes": axes,
    }


def grown(
    sizes: Sequence[int],
    *,
    milliseconds: Sequence[dict[str, float]],
    mib: Sequence[float] | None = None,
) -> dict[str, Any]:
    """What was measured along an axis, and how it grows."""
    figures: dict[str, Any] = {
        "sizes": list(sizes),
        "milliseconds": list(milliseconds),
        "time_exponent": exponent(sizes, [times["median"] for times in milliseconds]),
    }
    if mib is not None:
        figures |= {"peak_mib": list(mib), "memory_exponent": exponent(sizes, mib)}
    return figures


def exponent(sizes: Sequence[int], values: Sequence[float]) -> float:
    """The p of value = a size^p, by least squares of logarithms over the upper half of the sizes,
    where what does not grow weighs least."""
    half = max(2, (len(sizes) + 1) // 2)
    fit = statistics.linear_regression(
        [log(size) for size in sizes[-half:]], [log(value) for value in values[-half:]]
    )
    return round(fit.slope, 3)


def time_corpora(
    plan: Plan, corpora: Sequence[int], *, tell: Callable[[str], None]
) -> list[dict[str, float]]:
    """Milliseconds of a step, the fetching of its batch among them, on corpora of so many random
    tokens, which stand in files as training has them; in turn, in one process.

    Raises UserError when a corpus is too short for a batch.
    """
    prepare_process()
    context = plan.model.block_size
    steps = Steps(plan)
    dtype = token_dtype(plan.vocab_size)
    with tempfile.TemporaryDirectory() as folder:
        sides = {}
        for count in corpora:
            file = Path(folder) / f"{count}.bin"
            random = np.random.default_rng(plan.seed)
            random.integers(plan.vocab_size, size=count, dtype=dtype).tofile(file)
            batches = TrainingBatches(
                np.memmap(file, dtype=dtype, mode="r"),
                block_size=context,
                batch_size=plan.batch_size,
                seed=plan.seed,
            )
            sides[f"corpus {count:,}"] = next_step(steps, iter(batches))
        for step in sides.values():
            step()  # an epoch is dealt when its first batch is asked for
        measured = in_turn(sides, rounds=plan.rounds, tell=tell, unit="ms")
    return [spread(times) for times in measured.values()]


def next_step(steps: Steps, batches: Iterator[Batch]) -> Callable[[], float]:
    """What takes a step on the next batch, and says its milliseconds."""

    def step() -> float:
        wait_for(steps.device)
        started = time.perf_counter()
        inputs, targets = next(batches)
        steps.batch = inputs.to(steps.device), targets.to(steps.device)
        steps.take(1)
        return 1e3 * (time.perf_counter() - started)

    return step


def report(figures: dict[str, Any], console: Console) -> None:
    """A line for each size, and the exponents of each axis."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("axis", no_wrap=True)
    for name in ("size", "ms", "least", "most", "MiB"):
        table.add_column(name, justify="right", no_wrap=True)
    for axis, found in figures["axes"].items():
        memory = found.get("peak_mib", [None] * len(found["sizes"]))
        for number, (size, times, mib) in enumerate(
            zip(found["sizes"], found["milliseconds"], memory, strict=True)
        ):
            name = "" if number else axis
            cells = [f"{times[key]:,.1f}" for key in ("median", "min", "max")]
            table.add_row(name, f"{size:,}", *cells, "-" if mib is None else f"{mib:,.0f}")
        exponents = [f"{found['time_exponent']:z.2f}", "", ""]
        mib = f"{found['memory_exponent']:z.2f}" if "memory_exponent" in found else "-"
        table.add_row("", "exponent", *exponents, mib, style="bold", end_section=True)
    console.print(f"\n{conditions(figures)}", style="bold", highlight=False, soft_wrap=True)
    console.print(table)
    console.print(
        f"\nms: a training step, median of {figures['rounds']}, least and most. MiB: what it holds "
        "at most: weights, gradients, the optimizer's, activations. exponent: p where the figure "
        "grows as size^p, fitted to the upper half of the sizes.",
        highlight=False,
        soft_wrap=True,
    )


def conditions(figures: dict[str, Any]) -> str:
    base = ", ".join(f"{name} {value:,}" for name, value in figures["base"].items())
    return f"{figures['tokens_per_step']:,} tokens a step; but for what is varied: {base}"
