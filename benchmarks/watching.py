"""Measures how much longer training takes if the heads are watched, and checks that watching does
not change the weights."""

from copy import deepcopy
from functools import partial
from typing import Any

import torch

from benchmarks import runner
from benchmarks.runner import Figures, Request, Result
from headscope.config.training import TrainConfig
from headscope.errors import UserError
from headscope.training.callbacks.clock import callbacks_of, clock_of
from headscope.training.callbacks.head_watch import HeadWatch
from headscope.training.process import prepare_process

WATCHED, UNWATCHED = "headscope, watching", "headscope, not watching"


def measure(request: Request) -> Result:
    """Train twice in each round: with the metrics, names, snapshots and images of heads, and
    without them. Both runs log losses and validate.

    Raises RuntimeError if the weights at the end differ.
    """
    watched, unwatched = request.run, deepcopy(request.run)
    unwatched.callbacks.attention.steps = unwatched.callbacks.attention.images = 0
    unwatched.callbacks.heads.every_steps = 0
    if watched.callbacks == unwatched.callbacks:
        raise UserError("callbacks=plain watches no heads: leave it out")
    prepare_process()
    weights: list[dict[str, torch.Tensor]] = []
    sides = {
        UNWATCHED: partial(train, unwatched, weights),
        WATCHED: partial(train, watched, weights),
    }
    measured = runner.alternate(sides, request.suite.rounds)
    rows = runner.summarize(measured, ratio_of="seconds", reference=UNWATCHED)
    title = f"{request.experiment or 'default'} run, {watched.trainer.max_steps:,} steps"
    columns = {
        "seconds": "run, s",
        "watching_seconds": "watching, s",
        "share": "watching, % of the run",
        "snapshots": "snapshots",
        "megabytes": "size of all snapshots, MB",
    }
    return Result(
        {title: rows},
        columns,
        f"Median of {request.suite.rounds} rounds. The weights at the end of all runs are "
        "bit-identical. A run trains, validates and samples. Ratio: to the run without watching in "
        "the same round.",
        "Cost of watching heads during training",
        f"seconds of the run, x: ratio to {UNWATCHED}",
        {"seconds": "seconds"},
    )


def train(config: TrainConfig, weights: list[dict[str, torch.Tensor]]) -> Figures:
    """Train a run, and compare its weights with those of the first run, the only entry of
    `weights`."""
    run = runner.trained(config)
    state: dict[str, Any] = run.model.state_dict()
    weights[:] = weights or [state]
    if any(not torch.equal(state[name], first) for name, first in weights[0].items()):
        raise RuntimeError("watching changed the weights")
    watches = [each for each in callbacks_of(run.trainer) if isinstance(each, HeadWatch)]
    watching = sum(watch.seconds for watch in watches)
    seconds = clock_of(run.trainer).wall_seconds()
    return {
        "seconds": seconds,
        "watching_seconds": watching,
        "share": 100 * watching / seconds,
        "snapshots": sum(watch.logged_steps for watch in watches),
        "megabytes": sum(watch.logged_bytes for watch in watches) / 1e6,
    }
