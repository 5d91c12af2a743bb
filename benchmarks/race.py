"""Measures how long a recipe trains until it reaches a loss, and compares it with another recipe or
with nanoGPT. Both train in full, one after the other."""

import pickle
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from rich.console import Console

from benchmarks import runner
from benchmarks.runner import Figures, Request, Result
from headscope.config.parse import Positive
from headscope.config.training import TrainConfig
from headscope.conversion.nanogpt import read_model
from headscope.data.encode import ValidationText
from headscope.data.store import TokenStore
from headscope.errors import UserError
from headscope.machine import keep_freed_memory
from headscope.trained.evaluation import evaluate
from headscope.training.build import build
from headscope.training.module import LanguageModel

TRAINER = ("accelerator", "precision", "compile", "max_steps")
SHARED = ("data", "tokenizer", "store_dir", *(f"trainer.{key}" for key in TRAINER))
"""Overrides that start with one of these names apply to both recipes, all others only to the first
recipe."""

NANOGPT = ("train.py", "model.py", "configurator.py", "config/train_shakespeare_char.py")
CPU_RECIPE = (
    *("--device=cpu", "--compile=False", "--eval_iters=20", "--log_interval=1", "--block_size=64"),
    *("--batch_size=12", "--n_layer=4", "--n_head=4", "--n_embd=128", "--dropout=0.0"),
    *("--out_dir=out", "--always_save_checkpoint=True"),
)
"""The options of the CPU recipe in nanoGPT's README, and those that save the last checkpoint."""

Mark = dict[str, float]
"""One validation: the step, the seconds of training so far, and the loss on the whole split."""

Train = Callable[[int], tuple[int, list[Mark]]]
"""Trains with a given seed, and returns the number of parameters and a `Mark` per validation."""


def measure(
    request: Request,
    against: str | None,
    nanogpt: str | None,
    seeds: list[Positive],
    target: float | None,
    every_steps: Positive,
) -> Result:
    """Train both sides (two recipes, or a recipe and nanoGPT) once with each seed.

    The measured time is the training time until the loss is at most `target`. If the loss stays
    higher, or `target` is None, the time of the whole training is used.
    """
    sides, unit = trainings(request, against, nanogpt, every_steps)
    keep_freed_memory()
    left = {name: iter(seeds) for name in sides}

    def train(name: str) -> Figures:
        seed = next(left[name])
        parameters, marks = sides[name](seed)
        below = [mark["seconds"] for mark in marks if mark["loss"] <= (target or 0)]
        return {
            "seed": seed,
            "parameters": parameters,
            "final_loss": marks[-1]["loss"],
            "train_seconds": marks[-1]["seconds"],
            "target_seconds": below[0] if below else None,
            "marks": marks,
        }

    runs = runner.alternate({name: partial(train, name) for name in sides}, len(seeds))
    ours, theirs = runs
    seconds = [[each["target_seconds"] or each["train_seconds"] for each in runs[n]] for n in runs]
    speed_ups = [b / a for a, b in zip(*seconds, strict=True)]
    reached = all(run["target_seconds"] for run in runs[ours])
    goal = f"reaches {target} {unit}" if reached else "finishes training"
    result = f"{ours} {goal} {statistics.median(speed_ups):.2f} times as fast as {theirs}"
    rows = [{"side": name, **run} for name in runs for run in runs[name]]
    return Result(
        result,
        {f"Loss on the whole validation split, {unit}": rows},
        f"{result} (median of {len(seeds)} seed(s); {min(speed_ups):.2f} to {max(speed_ups):.2f}).",
        f"validation loss, {unit}",
        target=target,
    )


def trainings(
    request: Request, against: str | None, nanogpt: str | None, every_steps: int
) -> tuple[dict[str, Train], str]:
    """Returns the training function of each side by name, and the unit of the losses. The unit is
    bits per byte if the two tokenizers differ.

    Raises UserError when the two sides cannot be compared.
    """
    run, name, other_name = request.run, request.experiment or "default", against or "default"
    if nanogpt is not None:
        if missing := [file for file in NANOGPT if not Path(nanogpt, file).is_file()]:
            raise UserError(f"suite.nanogpt={nanogpt} has no {missing[0]}: name a nanoGPT checkout")
    elif other_name == name:
        raise UserError(f"suite.against={against} is the recipe itself: name another one")
    words = [word for word in request.words if word.startswith(SHARED)]
    other = request.compose("train", [*words, f"experiment={against or 'null'}"])
    if run.data != other.data:
        problem = f"{name} and {other_name} train on different texts, so losses cannot be compared"
        raise UserError(f"{problem}: give both the same, as data=...")
    key, unit = "loss", "nats per token"
    if run.tokenizer != other.tokenizer:
        key, unit = "bits_per_byte", "bits per byte"
    ours = partial(train_recipe, run, every_steps, key)
    if nanogpt is not None:
        return {name: ours, "nanoGPT": partial(train_nanogpt, Path(nanogpt), other, key)}, unit
    return {name: ours, other_name: partial(train_recipe, other, every_steps, key)}, unit


def train_recipe(
    config: TrainConfig, every_steps: int, key: str, seed: int
) -> tuple[int, list[Mark]]:
    config, losses = deepcopy(config), ValidationLosses(key)
    config.seed = seed
    config.trainer.val_every_steps = min(every_steps, config.trainer.max_steps)
    run = runner.train_in_temporary_folder(config, losses)
    return run.module.model.parameter_count(), losses.marks


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


def train_nanogpt(
    checkout: Path, config: TrainConfig, key: str, seed: int
) -> tuple[int, list[Mark]]:
    """Train nanoGPT on the tokens and for the steps of `config`, with a single `Mark`, at the
    last step: headscope computes the loss. nanoGPT always uses its own seed, so `seed` has no
    effect. Raises UserError when train.py fails."""
    steps = config.trainer.max_steps
    with TemporaryDirectory() as name:
        folder = Path(name)
        store = build(config, folder, Console(quiet=True)).data.store
        for file in NANOGPT:
            (folder / file).parent.mkdir(exist_ok=True)
            shutil.copy(checkout / file, folder / file)
        write_data(store, folder / "data" / "shakespeare_char")
        # nanoGPT saves only when it evaluates, so it must evaluate after the last step.
        ends = (f"--{end}={steps}" for end in ("max_iters", "lr_decay_iters", "eval_interval"))
        command = [sys.executable, "train.py", NANOGPT[-1], *CPU_RECIPE, *ends]
        done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            raise UserError("suite.nanogpt: train.py failed: see its messages above")
        seconds = training_seconds(done.stdout, steps)
        model, _, _ = read_model(folder / "out" / "ckpt.pt")
        text = ValidationText(store.validation, store.tokenizer.byte_lengths())
        losses = evaluate(model, text, batch_size=16)
    loss = losses["loss_nats_per_token" if key == "loss" else key]
    return model.parameter_count(), [{"step": steps, "seconds": seconds, "loss": loss}]


def write_data(store: TokenStore, folder: Path) -> None:
    """Write the tokens of both splits in the file format of nanoGPT's prepare.py."""
    if store.train.dtype != "uint16":
        raise UserError("nanoGPT stores tokens as uint16: choose a vocabulary below 65,536")
    folder.mkdir(parents=True)
    store.train.tofile(folder / "train.bin")
    store.validation.tofile(folder / "val.bin")
    meta = {"vocab_size": store.tokenizer.vocab_size}
    (folder / "meta.pkl").write_bytes(pickle.dumps(meta))


def training_seconds(log: str, steps: int) -> float:
    """The seconds of `steps` iterations, from the log of nanoGPT's train.py. nanoGPT evaluates
    before the first and after the last of them. The logged time of the first one includes this, so
    the mean of the others counts for it. Raises UserError when a time is missing."""
    times = [float(time) for time in re.findall(r"^iter \d+: .*time ([\d.]+)ms", log, re.M)]
    if len(times) < steps:
        problem = f"suite.nanogpt: the log of train.py lacks the times of {steps} iterations"
        raise UserError(f"{problem}: this version of nanoGPT is not supported")
    return statistics.fmean(times[1:steps] or times) * steps / 1e3
