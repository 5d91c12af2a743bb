"""Several choices, trained alike from the same seeds: what each learns, weighs and costs.

Everything is written as soon as it is known, so that a comparison that was stopped goes on where it
was: a run has its summary.json, or a checkpoint to resume from.
"""

import json
import re
import shutil
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from rich.console import Console

from headscope import checkpoint
from headscope.benchmarks.comparison_table import report, write
from headscope.benchmarks.training import bare_step
from headscope.build import build, plain
from headscope.check import check
from headscope.evaluation import evaluate_lengths, validation_text
from headscope.generation import generate_tokens
from headscope.run import fit

TIMED_STEPS, WARMUP_STEPS = 10, 3
EVALUATION_BATCH = 16


@dataclass(frozen=True)
class Planned:
    """A run to be made: its configuration, and the words of scripts/train.py that make it."""

    choice: str
    seed: int
    config: DictConfig
    words: list[str]
    folder: Path

    @property
    def summary(self) -> dict[str, Any] | None:
        file = self.folder / "summary.json"
        return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None


def run_comparison(
    configs: dict[str, dict[int, tuple[DictConfig, list[str]]]],
    *,
    folder: Path,
    block_sizes: list[int],
    speed_rounds: int,
    console: Console,
) -> list[dict[str, Any]]:
    """Train what is not trained yet, evaluate and time it; print and write what came of it.

    `configs` holds, for every choice and seed, a configuration and its words. Returns the rows of
    comparison.csv.

    Raises ValueError before anything is trained when a choice cannot be built, or `folder` holds
    runs of another recipe.
    """
    plans = {
        label(choice): [
            Planned(choice, seed, config, words, folder / folder_name(choice) / f"seed_{seed}")
            for seed, (config, words) in seeds.items()
        ]
        for choice, seeds in configs.items()
    }
    for size in block_sizes:
        if size < 1:
            raise ValueError(f"compare.block_sizes: {size} must be at least 1")
    if speed_rounds < 0:
        raise ValueError(f"speed_rounds={speed_rounds} must be 0 or more")
    every = [run for runs in plans.values() for run in runs]
    for run in every:
        try:
            check(run.config)
        except ValueError as error:
            raise ValueError(f"{run.choice}: {error}") from error
        check_same_recipe(run)
    train_all(every, console)
    # One seed is enough where the differences are large, and it is slow.
    lengths = {name: at_lengths(runs[0], block_sizes, console) for name, runs in plans.items()}
    speed = measure_speed(plans, folder, rounds=speed_rounds, console=console)
    rows = [
        {"choice": name, **figures_of(runs), **speed.get(name, {}), **lengths[name]}
        for name, runs in plans.items()
    ]
    write(rows, folder, block_sizes)
    report(rows, folder, console)
    return rows


def label(choice: str) -> str:
    """A choice in few words: `model/position=rotary model.heads=8` is `rotary heads=8`."""
    return re.sub(r"\bmodel(/\w+=|\.)", "", choice)


def folder_name(choice: str) -> str:
    return re.sub(r"[^\w.=-]+", "_", label(choice))


def check_same_recipe(run: Planned) -> None:
    """Raises ValueError when the run's folder holds one of another configuration."""
    last = run.folder / "checkpoints" / "last.ckpt"
    if not last.is_file():
        return
    before, now = checkpoint.read(last)["headscope"]["config"], plain(run.config)
    changed = sorted(key for key in {*before, *now} if before.get(key) != now.get(key))
    if changed:
        raise ValueError(
            f"{run.folder} holds a run with other settings of {', '.join(changed)}: name= gives "
            "this comparison a folder of its own"
        )


# --- training ---


def train_all(runs: list[Planned], console: Console) -> None:
    """Make every run that is not finished, one after the other."""
    waiting = [run for run in runs if run.summary is None]
    if len(waiting) < len(runs):
        console.print(f"{len(runs) - len(waiting)} of {len(runs)} runs are there already")
    started = time.monotonic()
    for number, run in enumerate(waiting):
        summary = train(run, console)
        left = (time.monotonic() - started) / (number + 1) * (len(waiting) - number - 1)
        console.print(
            f"{len(runs) - len(waiting) + number + 1} of {len(runs)}: {label(run.choice)}, seed "
            f"{run.seed}: {summary['val_bits_per_byte']:.4f} bits per byte after "
            f"{summary['train_seconds']:.0f} s of training; about {left / 60:.0f} min left",
            highlight=False,
            soft_wrap=True,
        )


def train(run: Planned, console: Console) -> dict[str, Any]:
    """One run, from where it was."""
    begun = (run.folder / "checkpoints" / "last.ckpt").is_file()
    if not begun:
        shutil.rmtree(run.folder, ignore_errors=True)  # of a run that was killed before it saved
    built = build(
        run.config,
        folder=run.folder,
        overrides=run.words,
        console=console if console.is_terminal else Console(quiet=True),
        resume=begun,
    )
    return fit(built)


# --- figures ---


def figures_of(runs: list[Planned]) -> dict[str, Any]:
    """Size, and bits per byte of every seed, their mean and their standard deviation."""
    summaries = {run.seed: run.summary or {} for run in runs}
    bits = [summary["val_bits_per_byte"] for summary in summaries.values()]
    first = runs[0]
    model = checkpoint.load(first.folder / "checkpoints" / "last.ckpt").model
    return {
        "parameters": model.parameter_count(),
        "cache_bytes_per_token": model.cache_bytes_per_token(),
        "bits_per_byte": statistics.mean(bits),
        "deviation": statistics.stdev(bits) if len(bits) > 1 else 0.0,
        **{f"seed_{seed}": value for seed, value in zip(summaries, bits, strict=True)},
    }


def at_lengths(run: Planned, block_sizes: list[int], console: Console) -> dict[str, float]:
    """Bits per byte of a run at each context length that its position encoding reaches."""
    if not block_sizes:
        return {}
    file = run.folder / "lengths.json"
    known = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    if set(known) != set(map(str, block_sizes)):
        loaded = checkpoint.load(
            run.folder / "checkpoints" / "last.ckpt", device=checkpoint.pick_device("auto")
        )
        text = validation_text(checkpoint.build_corpus(loaded.config), loaded.tokenizer)
        results = evaluate_lengths(
            loaded, text, batch_size=EVALUATION_BATCH, block_sizes=block_sizes
        )
        known = {str(entry["block_size"]): entry.get("bits_per_byte") for entry in results}
        file.write_text(json.dumps(known), encoding="utf-8")
        console.print(
            f"{label(run.choice)}, seed {run.seed}, at {', '.join(known)} tokens: "
            + ", ".join("-" if bits is None else f"{bits:.4f}" for bits in known.values()),
            highlight=False,
            soft_wrap=True,
        )
    return {f"bits_per_byte_at_{size}": bits for size, bits in known.items() if bits is not None}


def measure_speed(
    plans: dict[str, list[Planned]], folder: Path, *, rounds: int, console: Console
) -> dict[str, dict[str, float]]:
    """Milliseconds of a training step and tokens sampled per second, of every choice: medians of
    rounds that take the choices in turn, so that a machine that slows down slows all alike.

    Sampling reads the whole context anew for every token: there is no key-value cache yet.
    """
    file = folder / "speed.json"
    if file.is_file():
        known = json.loads(file.read_text(encoding="utf-8"))
        if set(known) == set(plans):
            return known
    steps: dict[str, list[float]] = {name: [] for name in plans}
    sampling: dict[str, list[float]] = {name: [] for name in plans}
    for number in range(rounds):
        console.print(f"timing, round {number + 1} of {rounds}", highlight=False)
        for name, runs in plans.items():
            config = runs[0].config.copy()
            config.trainer.max_steps = WARMUP_STEPS + TIMED_STEPS
            steps[name].append(bare_step(config, WARMUP_STEPS)[0])
            sampling[name].append(sampling_speed(runs[0]))
    if not rounds:
        return {}
    speed = {
        name: {
            "step_ms": statistics.median(steps[name]),
            "sampled_tokens_per_second": statistics.median(sampling[name]),
        }
        for name in plans
    }
    file.write_text(json.dumps(speed, indent=2), encoding="utf-8")
    return speed


def sampling_speed(run: Planned) -> float:
    """Tokens per second of one text of `block_size` tokens."""
    loaded = checkpoint.load(
        run.folder / "checkpoints" / "last.ckpt", device=checkpoint.pick_device("auto")
    )
    started = time.perf_counter()
    made = generate_tokens(
        loaded.model,
        [loaded.tokenizer.end_of_text],
        max_new_tokens=loaded.model.block_size - 1,
        generator=torch.Generator().manual_seed(1),
    )
    return len(list(made)) / (time.perf_counter() - started)
