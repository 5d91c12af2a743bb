"""Measures how long a recipe trains until it reaches a loss, and compares it with another recipe or
with nanoGPT. Both train in full, one after the other."""

import statistics
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from benchmarks import runner
from benchmarks.nanogpt import check_nanogpt, train_nanogpt
from benchmarks.runner import Figures, Request, Result
from headscope.config.training import TrainConfig
from headscope.data.machine import keep_freed_memory
from headscope.errors import UserError
from headscope.training.module import LanguageModel

TRAINER = ("trainer.accelerator", "trainer.precision", "trainer.compile")
SHARED = ("data", "tokenizer", "store_dir", *TRAINER)
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
    keep_freed_memory()
    seeds = {name: iter(plan.seeds) for name in sides}

    def train(name: str) -> Figures:
        seed = next(seeds[name])
        parameters, marks = sides[name](seed)
        below = [mark["seconds"] for mark in marks if mark["loss"] <= (plan.target or 0)]
        return {
            "seed": seed,
            "parameters": parameters,
            "final_loss": marks[-1]["loss"],
            "train_seconds": marks[-1]["seconds"],
            "target_seconds": below[0] if below else None,
            "marks": marks,
        }

    runs = runner.alternate({name: partial(train, name) for name in sides}, len(plan.seeds))
    ours, theirs = runs
    seconds = [[each["target_seconds"] or each["train_seconds"] for each in runs[n]] for n in runs]
    speed_ups = [b / a for a, b in zip(*seconds, strict=True)]
    reached = all(run["target_seconds"] for run in runs[ours])
    goal = f"reaches {plan.target} {unit}" if reached else "finishes training"
    result = f"{ours} {goal} {statistics.median(speed_ups):.2f} times as fast as {theirs}"
    rows = [{"side": name, **run} for name in runs for run in runs[name]]
    return Result(
        result,
        {f"Loss on the whole validation split, {unit}": rows},
        f"{result} (median of {len(plan.seeds)} seed(s); {min(speed_ups):.2f} to "
        f"{max(speed_ups):.2f}).",
        f"validation loss, {unit}",
        target=plan.target,
    )


def trainings(request: Request) -> tuple[dict[str, Train], str]:
    """Returns the training function of each side by name, and the unit of the losses. The unit is
    bits per byte if the two tokenizers differ.

    Raises UserError when the two sides cannot be compared.
    """
    plan, run = request.suite, request.run
    name, key, unit = request.experiment or "default", "loss", "nats per token"
    if plan.nanogpt is not None:
        check_nanogpt(checkout := Path(plan.nanogpt))
        theirs: Train = partial(train_nanogpt, checkout, request)
        return {name: partial(train_recipe, run, plan, key), "nanoGPT": theirs}, unit
    other_name = plan.against or "default"
    if other_name == name:
        raise UserError(f"suite.against={plan.against} is the recipe itself: name another one")
    words = [word for word in request.words if word.startswith(SHARED)]
    words += [f"experiment={plan.against}"] if plan.against else []
    other = request.compose("train", words)
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
    run = runner.train_in_temporary_folder(config, losses)
    return run.model.parameter_count(), losses.marks


class ValidationLosses(Callback):
    """Makes every validation use the whole split, and records the metric `val/<key>` and the
    training time up to this step."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.marks: list[Mark] = []

    def on_fit_start(self, trainer: Any, pl_module: LightningModule) -> None:
        trainer.datamodule.validation_every = 1

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, LanguageModel)
        mark = {"step": trainer.global_step, "seconds": pl_module.timer.seconds()}
        self.marks.append({**mark, "loss": float(trainer.callback_metrics[f"val/{self.key}"])})
