"""Measures how the time and memory of a training step grow with context, width, depth and
vocabulary.

Only one of these sizes varies at a time. Every step has the same number of tokens, so with a longer
context, a batch has fewer sequences.
"""

import statistics
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import log

import torch

from headscope.analysis.pictures.style import BLUE, ORANGE
from headscope.benchmarks import runner
from headscope.benchmarks.runner import Request, Result
from headscope.benchmarks.show import Line, Lines
from headscope.benchmarks.step import StepPlan, measure_isolated, step_plan
from headscope.checkpoint import build_model
from headscope.errors import UserError
from headscope.training.build import precision_of

KEYS = {"context": "contexts", "width": "widths", "depth": "layers", "vocabulary": "vocabularies"}
"""The sizes that vary, each with the key of `suite` that lists its values."""


def measure(request: Request) -> Result:
    """Measures the time and the peak memory of a step at every size, and fits how they grow."""
    suite, config = request.suite, request.run
    for context in (config.model.block_size, *suite.contexts):
        if suite.tokens_per_step % context:
            raise UserError(
                f"suite.tokens_per_step={suite.tokens_per_step} is not a multiple of a context of "
                f"{context} tokens"
            )
    config.trainer.batch_size = suite.tokens_per_step // config.model.block_size
    base, plans = step_plan(request), {}
    for axis, key in KEYS.items():
        values = sorted(set(getattr(suite, key)))
        if len(values) < 2 or values[0] < 1:
            raise UserError(f"suite.{key}={values} must be at least two numbers, each at least 1")
        plans[axis] = {size: at(base, axis, size) for size in values}
        for plan in plans[axis].values():
            # Raises UserError before the first measurement if the sizes do not fit together.
            with torch.device("meta"):
                build_model(plan.run.model, vocab_size=plan.vocab_size)
    groups, panels = {}, []
    for axis, sizes in plans.items():
        sides = {f"{size:,}": partial(measure_isolated, plan) for size, plan in sizes.items()}
        rows = runner.summarize(runner.alternate(sides), reference=next(iter(sides)))
        x, exponents = [*sizes], []
        lines = [Line("proportional to the size", x, [size / x[0] for size in x])]
        for key, name, colour in (("milliseconds", "time", BLUE), ("peak_mib", "memory", ORANGE)):
            y = [row[key]["median"] for row in rows]
            label = f"{name}, relative to the smallest size"
            lines.append(Line(label, x, [value / y[0] for value in y], colour))
            exponents.append(f"{name} ~ n^{exponent(x, y):z.2f}")
        title = f"{axis}: {', '.join(exponents)}"
        groups[title] = rows
        panels.append(Lines(title, f"{axis} n", lines, 2))
    model = base.run.model
    return Result(
        groups,
        {"milliseconds": "milliseconds", "peak_mib": "peak, MiB"},
        f"The other sizes stay at: context {model.block_size:,}, width {model.embed_dim:,}, depth "
        f"{model.layers}, vocabulary {base.vocab_size:,}, {precision_of(config.trainer)}. "
        f"Milliseconds: median of {base.rounds} steps. n^p: growth with the size n, fitted to the "
        "larger half of the sizes.",
        f"Growth of a training step of {suite.tokens_per_step:,} tokens",
        panels,
    )


def at(plan: StepPlan, axis: str, size: int) -> StepPlan:
    """A copy of `plan` in which `axis`, such as "width", has the value `size`. The tokens per step
    and the width of each head do not change."""
    model = plan.run.model
    if axis == "vocabulary":
        return replace(plan, vocab_size=size)
    if axis == "depth":
        return plan.changed(layers=size)
    if axis == "width":
        return plan.changed(embed_dim=size, heads=max(1, model.heads * size // model.embed_dim))
    batch_size = plan.run.trainer.batch_size * model.block_size // size
    return plan.changed({"batch_size": batch_size}, block_size=size)


def exponent(sizes: Sequence[int], values: Sequence[float]) -> float:
    """The exponent p in value = a size^p, fitted by least squares to the logarithms.

    Only the larger half of the sizes is used, because constant costs have the least effect there.
    """
    half = max(2, (len(sizes) + 1) // 2)
    x, y = ([log(each) for each in of[-half:]] for of in (sizes, values))
    return round(statistics.linear_regression(x, y).slope, 3)
