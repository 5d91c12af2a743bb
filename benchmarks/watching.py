"""Measures how much longer training takes if the heads are watched, and checks that watching does
not change the weights."""

from copy import deepcopy
from functools import partial
from typing import Any

import torch

from benchmarks import runner
from benchmarks.runner import Figures, Request, Result
from headscope.config.training import TrainConfig
from headscope.data.machine import keep_freed_memory
from headscope.training.callbacks.steps import StepCallback

WATCHED, UNWATCHED = "headscope, watching", "headscope, not watching"


def measure(request: Request) -> Result:
    """Train twice in each round: with the metrics, names, snapshots and images of heads, and
    without them. Both runs log losses and validate.

    Raises RuntimeError if the weights at the end differ.
    """
    watched, unwatched = request.run, deepcopy(request.run)
    for name in ("attention", "heads"):
        unwatched.callbacks.pop(name, None)
    keep_freed_memory()
    weights: list[dict[str, torch.Tensor]] = []
    configs = {UNWATCHED: unwatched, WATCHED: watched}
    sides = {name: partial(train, config, weights) for name, config in configs.items()}
    rounds = request.suite.rounds
    rows = runner.compared(sides, rounds, ratio_of="seconds", reference=UNWATCHED)
    return Result(
        "Cost of watching heads during training",
        {f"{request.experiment or 'default'} run, {watched.trainer.max_steps:,} steps": rows},
        f"Median of {rounds} rounds. The weights at the end of all runs are "
        "bit-identical. A run trains, validates and samples. Ratio: to the run without watching in "
        "the same round.",
        f"seconds of the run, x: ratio to {UNWATCHED}",
        "seconds",
    )


def train(config: TrainConfig, weights: list[dict[str, torch.Tensor]]) -> Figures:
    """Train a run, and compare its weights with those of the first run, the only entry of
    `weights`."""
    run = runner.train_in_temporary_folder(config)
    state: dict[str, Any] = run.model.state_dict()
    weights[:] = weights or [state]
    if any(not torch.equal(state[name], first) for name, first in weights[0].items()):
        raise RuntimeError("watching changed the weights")
    watches = [each for each in run.trainer.callbacks if isinstance(each, StepCallback)]
    watching, seconds = sum(each.seconds for each in watches), run.module.timer.wall_seconds()
    percent = 100 * watching / seconds
    return {"seconds": seconds, "watching_seconds": watching, "watching_percent": percent}
