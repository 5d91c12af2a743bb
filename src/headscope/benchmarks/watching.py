"""What watching costs, and that it changes nothing: a run with its heads watched, and without."""

import hashlib
import shutil
import tempfile
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from headscope.benchmarks.timing import spread
from headscope.config.training import TrainConfig
from headscope.errors import UserError
from headscope.nn import GPT
from headscope.stop import on_stop
from headscope.training.build import build
from headscope.training.callbacks.clock import clock_of
from headscope.training.callbacks.watching import watching_seconds


@dataclass(frozen=True)
class Side:
    """One run: what watching took of its time, and its last weights."""

    watching_seconds: float
    train_seconds: float
    wall_seconds: float
    weights: str


def compare_watching(config: TrainConfig, *, rounds: int, console: Console) -> dict[str, Any]:
    """Train what `config` describes with its heads watched and unwatched, in turn.

    `share` is the part of a watched run's wall time in which training waited for the watchers.
    `same_weights` is whether all runs ended with the same weights, bit for bit. Raises UserError
    when nothing would be watched.
    """
    if not config.callbacks.attention.images and not config.callbacks.heads.every_steps:
        raise UserError(
            "callbacks.attention.images=0 and callbacks.heads.every_steps=0: nothing is watched"
        )
    configs = {"watched": config, "plain": unwatched(config)}
    sides: dict[str, list[Side]] = {name: [] for name in configs}
    for number in range(rounds):
        order = list(configs) if number % 2 == 0 else list(configs)[::-1]
        for name in order:
            sides[name].append(train(configs[name]))
        last = sides["watched"][-1]
        console.print(
            f"round {number + 1}: watching took {last.watching_seconds:.2f} s of "
            f"{last.wall_seconds:.1f} s; without it {sides['plain'][-1].wall_seconds:.1f} s",
            highlight=False,
        )
    watched = sides["watched"]
    return {
        "share": spread([side.watching_seconds / side.wall_seconds for side in watched]),
        "watching_seconds": spread([side.watching_seconds for side in watched]),
        **{
            f"{name}_seconds": {
                "wall": spread([side.wall_seconds for side in runs]),
                "training": spread([side.train_seconds for side in runs]),
            }
            for name, runs in sides.items()
        },
        "same_weights": len({side.weights for runs in sides.values() for side in runs}) == 1,
        "steps": config.trainer.max_steps,
        "rounds": rounds,
    }


def unwatched(config: TrainConfig) -> TrainConfig:
    config = deepcopy(config)
    config.callbacks.attention.images = 0
    config.callbacks.heads.every_steps = 0
    return config


def train(config: TrainConfig) -> Side:
    """A run as scripts/train.py makes it, but for the validation on the whole split at its end."""
    with (
        tempfile.TemporaryDirectory() as folder,
        on_stop(partial(shutil.rmtree, folder, ignore_errors=True)),
    ):
        this = build(config, folder=Path(folder), console=Console(quiet=True))
        this.trainer.fit(this.module, datamodule=this.data)
        clock = clock_of(this.trainer)
        return Side(
            watching_seconds=watching_seconds(this.trainer),
            train_seconds=clock.train_seconds,
            wall_seconds=clock.wall_seconds(),
            weights=fingerprint(this.model),
        )


def fingerprint(model: GPT) -> str:
    digest = hashlib.sha256()
    for name, weight in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(weight.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
