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
from filelock import FileLock, Timeout
from omegaconf import DictConfig
from rich.console import Console

from headscope import checkpoint
from headscope.benchmarks.comparison_table import report, write
from headscope.benchmarks.training import bare_step
from headscope.build import build, plain
from headscope.check import check
from headscope.evaluation import evaluate_lengths, validation_text
from headscope.generation import generate_tokens
from headscope.run import device_name, fit, write_atomically

TIMED_STEPS, WARMUP_STEPS = 10, 3
EVALUATION_BATCH = 16


@dataclass(frozen=True)
class Planned:
    """A run to be made: its configuration, and the words of the command line that are its own."""

    choice: str
    seed: int
    config: DictConfig
    words: list[str]
    folder: Path

    @property
    def last(self) -> Path:
        return self.folder / "checkpoints" / "last.ckpt"

    @property
    def finished(self) -> bool:
        return (self.folder / "summary.json").is_file() and self.last.is_file()

    def summary(self) -> dict[str, Any]:
        return json.loads((self.folder / "summary.json").read_text(encoding="utf-8"))


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

    Raises ValueError before anything is trained when a setting or a size does not fit, `folder`
    holds runs of another recipe, or another process is at work there.
    """
    try:
        with FileLock(folder / ".lock", timeout=0):
            return _run(configs, folder, block_sizes, speed_rounds, console)
    except Timeout:
        raise ValueError(f"another comparison is at work in {folder}") from None


def _run(
    configs: dict[str, dict[int, tuple[DictConfig, list[str]]]],
    folder: Path,
    block_sizes: list[int],
    speed_rounds: int,
    console: Console,
) -> list[dict[str, Any]]:
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
    # A seed of every choice before the next: what goes wrong in one is seen early.
    every = [run for runs in zip(*plans.values(), strict=True) for run in runs]
    if len({run.folder for run in every}) < len(configs) * len(plans[label(every[0].choice)]):
        raise ValueError("two of compare.choices= have the same name, without its odd characters")
    for run in every:
        try:
            check(run.config)
        except ValueError as error:
            raise ValueError(f"{run.choice}: {error}") from error
        check_same_recipe(run)
    train_all(every, console)
    check_same_text(every)
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
    if not run.last.is_file():
        return
    before, now = checkpoint.read(run.last)["headscope"]["config"], plain(run.config)
    keys = {*before, *now} - {"name"}  # that of the folder
    changed = sorted(key for key in keys if before.get(key) != now.get(key))
    if changed:
        raise ValueError(
            f"{run.folder} holds a run with other settings of {', '.join(changed)}: name= gives "
            "this comparison a folder of its own"
        )


def check_same_text(runs: list[Planned]) -> None:
    """Raises ValueError when a file has changed between runs that name the same text."""
    stores: dict[str, str] = {}
    for run in runs:
        own = checkpoint.read(run.last)["headscope"]
        text = json.dumps([own["config"]["data"], own["config"]["tokenizer"]])
        if stores.setdefault(text, own["store"]) != own["store"]:
            raise ValueError(
                f"{run.folder} was trained on another text than those before it, of the same name: "
                "name= gives this comparison a folder of its own"
            )


# --- training ---


def train_all(runs: list[Planned], console: Console) -> None:
    """Make every run that is not finished, one after the other."""
    waiting = [run for run in runs if not run.finished]
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
    begun = run.last.is_file()
    if not begun and run.folder.exists():
        shutil.rmtree(run.folder)  # of a run that was killed before it saved
    try:
        built = build(
            run.config,
            folder=run.folder,
            overrides=run.words,
            console=console if console.is_terminal else Console(quiet=True),
            resume=begun,
        )
        return fit(built)
    except ValueError as error:
        raise ValueError(f"{run.choice}, seed {run.seed}: {error}") from error


# --- figures ---


def figures_of(runs: list[Planned]) -> dict[str, Any]:
    """Size, and bits per byte of every seed, their mean and, of several, the standard deviation of
    the sample."""
    bits = [run.summary()["val_bits_per_byte"] for run in runs]
    model = checkpoint.load(runs[0].last).model
    return {
        "parameters": model.parameter_count(),
        "cache_bytes_per_token": model.cache_bytes_per_token(),
        "bits_per_byte": statistics.mean(bits),
        **({"deviation": statistics.stdev(bits)} if len(bits) > 1 else {}),
        **{f"seed_{run.seed}": value for run, value in zip(runs, bits, strict=True)},
    }


def at_lengths(run: Planned, block_sizes: list[int], console: Console) -> dict[str, float]:
    """Bits per byte of a run at each context length that its position encoding reaches."""
    if not block_sizes:
        return {}
    file = run.folder / "lengths.json"
    known = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    if set(known) != set(map(str, block_sizes)):
        loaded = checkpoint.load(run.last, device=checkpoint.pick_device("auto"))
        text = validation_text(checkpoint.build_corpus(loaded.config), loaded.tokenizer)
        results = evaluate_lengths(
            loaded, text, batch_size=EVALUATION_BATCH, block_sizes=block_sizes
        )
        known = {str(entry["block_size"]): entry.get("bits_per_byte") for entry in results}
        write_atomically(file, json.dumps(known))
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
    """Milliseconds of a training step (one batch, not compiled) and tokens sampled per second, of
    every choice: medians of rounds that take the choices in turn, so that a machine that slows down
    slows all alike.

    Sampling reads the whole context anew for every token: there is no key-value cache yet.
    """
    if not rounds:
        return {}
    file = folder / "speed.json"
    where = {
        "choices": list(plans),
        "rounds": rounds,
        "device": device_name(checkpoint.pick_device("auto")),
        "torch": torch.__version__,
    }
    if file.is_file():
        known = json.loads(file.read_text(encoding="utf-8"))
        if known["where"] == where:
            return known["speed"]
    steps: dict[str, list[float]] = {name: [] for name in plans}
    sampling: dict[str, list[float]] = {name: [] for name in plans}
    for number in range(rounds):
        console.print(f"timing, round {number + 1} of {rounds}", highlight=False)
        for name, runs in plans.items():
            config = runs[0].config.copy()
            config.trainer.max_steps = WARMUP_STEPS + TIMED_STEPS
            steps[name].append(bare_step(config, WARMUP_STEPS)[0])
            sampling[name].append(sampling_speed(runs[0]))
    speed = {
        name: {
            "step_ms": statistics.median(steps[name]),
            "sampled_tokens_per_second": statistics.median(sampling[name]),
        }
        for name in plans
    }
    write_atomically(file, json.dumps({"where": where, "speed": speed}, indent=2))
    return speed


def sampling_speed(run: Planned) -> float:
    """Tokens per second of one text of `block_size` tokens."""
    loaded = checkpoint.load(run.last, device=checkpoint.pick_device("auto"))
    started = time.perf_counter()
    made = generate_tokens(
        loaded.model,
        [loaded.tokenizer.end_of_text],
        max_new_tokens=loaded.model.block_size - 1,
        generator=torch.Generator().manual_seed(1),
    )
    return len(list(made)) / (time.perf_counter() - started)
