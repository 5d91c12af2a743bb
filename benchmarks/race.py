"""Measures how long a recipe trains until it reaches a loss, and compares it with another recipe or
with nanoGPT. Both train in full, one after the other."""

import statistics
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from benchmarks import nanogpt, runner
from benchmarks.runner import Figures, Request, Result
from benchmarks.table import Line
from headscope.analysis.pictures.style import BLUE, ORANGE
from headscope.config.training import TrainConfig
from headscope.errors import UserError
from headscope.training.callbacks.clock import clock_of
from headscope.training.process import prepare_process

SHARED = (
    *("data", "tokenizer", "store_dir"),
    *("trainer.accelerator", "trainer.precision", "trainer.compile"),
)
"""Overrides that start with one of these names apply to both recipes, all others only to the first
recipe."""

Mark = dict[str, float]
"""One validation: the step, the seconds of training so far, and the loss on the whole split."""

Train = Callable[[int], tuple[int, list[Mark]]]
"""Trains with a given seed, and returns the number of parameters and a `Mark` per validation."""


def measure(request: Request) -> Result:
    """Train both sides (two recipes, or a recipe and nanoGPT) once with each seed.

    The measured time is the training time until the loss is at most `suite.target`. If the loss
    stays higher, or `suite.target` is null, the time of the whole training is used.
    """
    plan = request.suite
    sides, unit = trainings(request)
    prepare_process()
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}

    def train(name: str) -> Figures:
        seed = plan.seeds[len(runs[name])]
        parameters, marks = sides[name](seed)
        below = [mark for mark in marks if plan.target is not None and mark["loss"] <= plan.target]
        last, seconds = marks[-1], below[0]["seconds"] if below else None
        run = {"side": name, "seed": seed, "parameters": parameters, "final_loss": last["loss"]}
        run |= {"train_seconds": last["seconds"], "target_seconds": seconds, "marks": marks}
        runs[name].append(run)
        return {"seconds": seconds or last["seconds"], "final_loss": last["loss"]}

    measured = runner.alternate({name: partial(train, name) for name in runs}, len(plan.seeds))
    ours, theirs = runs
    speed_ups = [
        second["seconds"] / first["seconds"]
        for first, second in zip(measured[ours], measured[theirs], strict=True)
    ]
    if plan.target is None:
        goal = "finishes training"
    elif all(run["target_seconds"] for run in runs[ours]):
        goal = f"reaches {plan.target} {unit}"
    else:
        goal = f"does not always reach {plan.target} {unit}; it finishes training"
    result = f"{ours} {goal} {statistics.median(speed_ups):.2f} times as fast as {theirs}"
    rows = [*runs[ours], *runs[theirs]]
    lines = []
    for row in rows:
        seconds, losses = ([mark[key] for mark in row["marks"]] for key in ("seconds", "loss"))
        lines.append(Line(row["side"], seconds, losses, ORANGE if row["side"] == ours else BLUE))
    if plan.target is not None:
        end = max(row["train_seconds"] for row in rows)
        lines.append(Line(f"target: {plan.target}", [0, end], [plan.target] * 2))
    return Result(
        {"Validation loss on the whole split, and seconds of training": rows},
        {
            "seed": "seed",
            "parameters": "parameters",
            "final_loss": f"final {unit}",
            "train_seconds": "training, s",
            "target_seconds": "time to target, s",
        },
        f"{result} (median of {len(plan.seeds)} seed(s); {min(speed_ups):.2f} to "
        f"{max(speed_ups):.2f}).",
        result,
        f"validation loss, {unit}",
        {},
        lines,
    )


def trainings(request: Request) -> tuple[dict[str, Train], str]:
    """Returns the training function of each side by name, and the unit of the losses. The unit is
    bits per byte if the two tokenizers differ.

    Raises UserError when the two sides cannot be compared.
    """
    plan, run = request.suite, request.run
    name, key, unit = request.experiment or "default", "loss", "nats per token"
    if plan.nanogpt is not None:
        theirs: Train = partial(nanogpt.train, nanogpt.checked(plan.nanogpt), request)
        return {name: partial(train_recipe, run, plan, key), "nanoGPT": theirs}, unit
    other_name = plan.against or "default"
    if other_name == name:
        raise UserError(f"suite.against={plan.against} is the recipe itself: name another one")
    words = [word for word in request.words if word.startswith(SHARED)]
    words += [f"experiment={plan.against}"] if plan.against else []
    other = request.compose(TrainConfig, "train", words)
    if run.data != other.data:
        raise UserError(
            f"{name} and {other_name} train on different texts, so their losses cannot be "
            "compared: give both the same, as data=..."
        )
    if run.tokenizer != other.tokenizer:
        key, unit = "bits_per_byte", "bits per byte"
    configs = {name: run, other_name: other}
    return {side: partial(train_recipe, configs[side], plan, key) for side in configs}, unit


def train_recipe(config: TrainConfig, plan: Any, key: str, seed: int) -> tuple[int, list[Mark]]:
    config, losses = deepcopy(config), ValidationLosses(key)
    config.seed, trainer = seed, config.trainer
    trainer.max_steps = min(trainer.max_steps, plan.max_steps or trainer.max_steps)
    trainer.val_every_steps = min(plan.every_steps, trainer.max_steps)
    run = runner.trained(config, losses, validate_all=True)
    return run.model.parameter_count(), losses.marks


class ValidationLosses(Callback):
    """At every validation, records the metric `val/<key>` and the training time up to this step."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.marks: list[Mark] = []

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        mark = {"step": trainer.global_step, "seconds": clock_of(trainer).seconds()}
        self.marks.append({**mark, "loss": float(trainer.callback_metrics[f"val/{self.key}"])})
