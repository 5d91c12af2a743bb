"""What watching heads during training costs, and that it changes nothing."""

from copy import deepcopy
from functools import partial
from typing import Any

import torch

from headscope.benchmarks.runner import Figures, Request, Result, spread, summarize, trained
from headscope.benchmarks.show import Bars
from headscope.config.training import TrainConfig
from headscope.errors import UserError
from headscope.training.callbacks.clock import clock_of
from headscope.training.callbacks.step_callback import watching_seconds

PARTS = {
    "training": "training",
    "rest": "start, validation, samples and saving",
    "watching": "watching",
}


def measure(request: Request) -> Result:
    """Seconds of a run with its heads watched and unwatched. `share` is the part of a watched run's
    wall time in which training waited for the watchers."""
    config, plain, rounds = request.run, deepcopy(request.run), request.suite.rounds
    if not config.callbacks.attention.images and not config.callbacks.heads.every_steps:
        raise UserError(
            "callbacks.attention.images=0 and callbacks.heads.every_steps=0: nothing is watched; "
            "set one of them above 0"
        )
    plain.callbacks.attention.images = plain.callbacks.heads.every_steps = 0
    weights: list[dict[str, Any]] = []

    def train(config: TrainConfig) -> Figures:
        run = trained(config)
        weights.append(run.model.state_dict())
        clock, watching = clock_of(run.trainer), watching_seconds(run.trainer)
        wall, training = clock.wall_seconds(), clock.train_seconds
        rest = wall - training - watching
        return {"wall": wall, "training": training, "rest": rest, "watching": watching}

    sides = {"watched": partial(train, config), "plain": partial(train, plain)}
    measured = request.alternate(sides, rounds)
    first, *others = weights
    same = all(torch.equal(first[name], other[name]) for other in others for name in first)
    share = spread([run["watching"] / run["wall"] for run in measured["watched"]])
    rows = summarize(measured, reference="plain")
    title = f"{config.trainer.max_steps:,} training steps, median of {rounds} round(s)"
    words = "watching {watching[median]:.2f} s of {wall[median]:.1f} s"
    result = f"watching takes {share['median']:.2%} of the watched run's wall time"
    return Result(
        {title: rows},
        ["wall", *PARTS],
        f"{result}; the last weights of all runs are {'bit-identical' if same else 'DIFFERENT'}.",
        f"The cost of watching heads: {result}",
        [Bars(title, "seconds", rows, PARTS, words)],
        figures={"share": share, "same_weights": same},
    )
