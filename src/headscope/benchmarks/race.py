"""How soon one recipe is as good as another: both trained whole, in turn, seed by seed."""

import shutil
import tempfile
from copy import deepcopy
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from headscope.analysis.pictures.style import BLUE, ORANGE
from headscope.benchmarks.timing import machine, place, ratios
from headscope.benchmarks.training import built
from headscope.config.training import TrainConfig
from headscope.stop import on_stop
from headscope.training.callbacks.clock import callbacks_of, clock_of
from headscope.training.process import prepare_process


@dataclass(frozen=True)
class Mark:
    """The loss of the whole validation split after a time of training, validation left out."""

    step: int
    seconds: float
    loss: float


def race(
    configs: dict[str, TrainConfig],
    *,
    seeds: list[int],
    target: float | None,
    every_steps: int,
    console: Console,
) -> dict[str, Any]:
    """Train each of two recipes, `configs` by name, once with each seed, in turn.

    The whole validation split is read every `every_steps` and at the end, off the clock. A recipe's
    time is that of the first such loss of at most `target`, or of its whole training where it
    never gets there, or where there is no target. `times_faster` is how often the first one's time
    goes into the second one's.
    """
    prepare_process()
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in configs}
    for number, seed in enumerate(seeds):
        for name in list(configs) if number % 2 == 0 else list(configs)[::-1]:
            found = run_once(configs[name], seed=seed, every_steps=every_steps)
            reached = next((mark for mark in found["marks"] if at_most(mark, target)), None)
            last = found["marks"][-1]
            found["reached"] = reached and asdict(reached)
            found["seconds"] = (reached or last).seconds
            found["marks"] = [asdict(mark) for mark in found["marks"]]
            runs[name].append(found)
            told = f"loss {last.loss:.4f} after {last.seconds:.2f} s of training"
            if reached:
                told += f", {reached.loss:.4f} after {reached.seconds:.2f} s"
            console.print(f"seed {seed}: {name}, {told}")
    first, second = ([run["seconds"] for run in found] for found in runs.values())
    return {
        **machine(found["device"]),
        "target": target,
        "times_faster": ratios(second, first),
        "runs": {
            name: [{key: value for key, value in run.items() if key != "device"} for run in found]
            for name, found in runs.items()
        },
    }


def at_most(mark: Mark, target: float | None) -> bool:
    return target is not None and mark.loss <= target


def run_once(config: TrainConfig, *, seed: int, every_steps: int) -> dict[str, Any]:
    """Train what `config` describes, as scripts/train.py does."""
    config = deepcopy(config)
    config.seed = seed
    config.trainer.val_every_steps = min(every_steps, config.trainer.max_steps)
    with (
        tempfile.TemporaryDirectory() as folder,
        on_stop(partial(shutil.rmtree, folder, ignore_errors=True)),
    ):
        this = built(config, folder)
        this.data.validation_every = 1
        marks = Marks()
        callbacks_of(this.trainer).append(marks)
        this.trainer.fit(this.module, datamodule=this.data)
    return {
        "seed": seed,
        "parameters": this.model.parameter_count(),
        "marks": marks.found,
        "device": this.trainer.strategy.root_device,
    }


class Marks(Callback):
    """Notes the loss at every validation."""

    def __init__(self) -> None:
        self.found: list[Mark] = []

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        loss = float(trainer.callback_metrics["val/loss"])
        self.found.append(Mark(trainer.global_step, clock_of(trainer).seconds(), loss))


def report(figures: dict[str, Any], console: Console) -> None:
    """A row for each run."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("recipe", "seed", "parameters", "last loss", "training", "at the target"):
        table.add_column(name, justify="left" if name == "recipe" else "right", no_wrap=True)
    for name, runs in figures["runs"].items():
        for run in runs:
            last, reached = run["marks"][-1], run["reached"]
            table.add_row(
                name,
                str(run["seed"]),
                f"{run['parameters']:,}",
                f"{last['loss']:.4f}",
                f"{last['seconds']:.2f} s",
                f"{reached['seconds']:.2f} s" if reached else "-",
            )
    console.print(table)
    faster, (ours, theirs) = figures["times_faster"], figures["runs"]
    what = "trains" if figures["target"] is None else f"is at {figures['target']} nats"
    if figures["target"] is not None and not all(run["reached"] for run in figures["runs"][ours]):
        what = f"is not always at {figures['target']} nats at its end, which comes"
    console.print(
        f"\n{ours} {what} {faster['median']:.2f} times as fast as {theirs} (median of "
        f"{len(figures['runs'][ours])} seeds; {faster['min']:.2f} to {faster['max']:.2f})",
        highlight=False,
        soft_wrap=True,
    )


def draw(figures: dict[str, Any]) -> Figure:
    """The loss of every run against its time of training."""
    figure = Figure(figsize=(9, 5), layout="constrained")
    panel = figure.subplots()
    for (name, runs), colour in zip(figures["runs"].items(), (ORANGE, BLUE), strict=True):
        for number, run in enumerate(runs):
            marks = run["marks"]
            panel.plot(
                [mark["seconds"] for mark in marks],
                [mark["loss"] for mark in marks],
                color=colour,
                marker="o",
                markersize=4,
                linewidth=1.2,
                label=name if number == 0 else None,
            )
    if figures["target"] is not None:
        panel.axhline(figures["target"], color="#666666", linewidth=1, linestyle="--")
    panel.set_xlabel("seconds of training, validation left out")
    panel.set_ylabel("loss of the whole validation split, nats per token")
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(color="#e0e0e0", linewidth=0.8)
    panel.legend(frameon=False)
    first, second = figures["runs"]
    seeds = len(figures["runs"][first])
    panel.set_title(
        f"{first} against {second}, {seeds} seed{'s' if seeds > 1 else ''} each, in turn, "
        f"{place(figures)}\n{figures['times_faster']['median']:.2f} times as fast (median)",
        fontsize=12,
    )
    return figure
