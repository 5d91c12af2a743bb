"""How the cost of a training step grows with corpus, context, width, depth and vocabulary.

One size varies at a time. Every step trains on equally many tokens, so a longer context means fewer
sequences.
"""

import statistics
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import log

import torch

from headscope.analysis.pictures.style import BLUE, ORANGE
from headscope.benchmarks.runner import Request, Result, summarize
from headscope.benchmarks.show import Line, Lines
from headscope.benchmarks.step import StepPlan, measure_isolated, step_plan
from headscope.checkpoint import build_model
from headscope.errors import UserError
from headscope.training.build import precision_of

KEYS = {
    "corpus": "corpora",
    "context": "contexts",
    "width": "widths",
    "depth": "layers",
    "vocabulary": "vocabularies",
}
"""The axes, and the keys of `suite` with their values."""


def measure(request: Request) -> Result:
    """Milliseconds of a step and its peak memory at every size, and the exponents of growth."""
    suite, config = request.suite, request.run
    sizes: dict[str, list[int]] = {axis: getattr(suite, key) for axis, key in KEYS.items()}
    for axis, values in sizes.items():
        if len(values) < 2 or values[0] < 1 or not all(a < b for a, b in pairwise(values)):
            raise UserError(
                f"suite.{KEYS[axis]}={values} must be at least two rising numbers, each at least 1"
            )
    config.trainer.batch_size = sequences(suite.tokens_per_step, config.model.block_size)
    base = replace(step_plan(request), corpus=sizes["corpus"][0])
    # By what they are: the base stands on every axis and is measured once.
    plans = {(axis, size): at(base, axis, size) for axis in KEYS for size in sizes[axis]}
    for plan in plans.values():
        with torch.device("meta"):  # reports a size that does not fit before any is measured
            build_model(plan.run.model, vocab_size=plan.vocab_size)
    names = {repr(plan): f"{axis} {size:,}" for (axis, size), plan in reversed(plans.items())}
    sides = {names[repr(plan)]: partial(measure_isolated, plan) for plan in plans.values()}
    rows = summarize(request.alternate(sides), reference=next(iter(sides)))
    found = {row["side"]: row for row in rows}
    groups, panels, exponents = {}, [], {}
    for axis, values in sizes.items():
        rows = [{**found[names[repr(plans[axis, size])]], "side": f"{size:,}"} for size in values]
        lines = [Line("proportional to the size", values, [size / values[0] for size in values])]
        for key, name, colour in (("milliseconds", "time", BLUE), ("peak_mib", "memory", ORANGE)):
            medians = [row[key]["median"] for row in rows]
            multiples = [median / medians[0] for median in medians]
            lines.append(
                Line(f"{name}, times that of the smallest size", values, multiples, colour, "o")
            )
            exponents[f"{axis} {name}"] = exponent(values, medians)
        time, memory = exponents[f"{axis} time"], exponents[f"{axis} memory"]
        title = f"{axis}: time ~ n^{time:z.2f}, memory ~ n^{memory:z.2f}"
        groups[title] = rows
        panels.append(Lines(title, f"{axis} n", lines, 2))
    model = base.run.model
    conditions = (
        f"corpus {base.corpus:,}, context {model.block_size:,}, width {model.embed_dim:,}, depth "
        f"{model.layers}, vocabulary {base.vocab_size:,}"
    )
    fit = "n^p: growth with the size n, fitted to the upper half of the sizes"
    return Result(
        groups,
        ["milliseconds", "peak_mib"],
        f"ms: median of {base.rounds} steps. {fit}.",
        f"How a training step of {suite.tokens_per_step:,} tokens grows\n{conditions}, where "
        f"another size varies; {precision_of(config.trainer)}\n{fit}",
        panels,
        panel_columns=3,
        figures={"exponents": exponents},
    )


def at(plan: StepPlan, axis: str, size: int) -> StepPlan:
    """`plan` with another size on one axis. Tokens per step and the width of a head stay."""
    model, trainer = plan.run.model, plan.run.trainer
    if axis == "corpus":
        return replace(plan, corpus=size)
    if axis == "vocabulary":
        return replace(plan, vocab_size=size)
    if axis == "depth":
        return plan.changed(layers=size)
    if axis == "width":
        return plan.changed(embed_dim=size, heads=max(1, model.heads * size // model.embed_dim))
    batch_size = sequences(trainer.batch_size * model.block_size, size)
    return plan.changed({"batch_size": batch_size}, block_size=size)


def sequences(tokens: int, context: int) -> int:
    """How many sequences of `context` tokens make `tokens`. Raises UserError at a remainder."""
    if tokens < context or tokens % context:
        raise UserError(
            f"suite.tokens_per_step={tokens} is no multiple of a context of {context} tokens"
        )
    return tokens // context


def exponent(sizes: Sequence[int], values: Sequence[float]) -> float:
    """The p of value = a size^p, by least squares of logarithms over the upper half of the sizes,
    where constant costs weigh least."""
    half = max(2, (len(sizes) + 1) // 2)
    x, y = ([log(each) for each in of[-half:]] for of in (sizes, values))
    return round(statistics.linear_regression(x, y).slope, 3)
